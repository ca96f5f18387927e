"""A model that cannot be linked, answering with full prefills: what `--allow-fallback` gives."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from epic_rag.errors import UnsupportedModelError
from epic_rag.kv_cache import KVCache
from epic_rag.model.language_model import LanguageModel, generation_eos
from epic_rag.model.rope import Rope
from epic_rag.model.score_sink import ScoreSink
from epic_rag.model.tokens import TextTokenizer

_DEFAULT_WINDOW = 4096
"""For models that name no limit, such as state-space models."""


class PlainCache(KVCache):
    """The token ids so far, and the state that transformers keeps for them (None where the model keeps none)."""

    def __init__(self, state: DynamicCache | None) -> None:
        super().__init__((0, 0, 0, 0), torch.float32, torch.device("cpu"))
        self.state = state
        self.token_ids: list[int] = []


class PlainModel(LanguageModel):
    """Runs whole prompts through transformers' own forward; nothing is stored, loaded or evicted."""

    can_link = False

    def __init__(self, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, reason: str) -> None:
        """Take any causal language model; `reason` says why it cannot be linked."""
        config = hf_model.config
        hf_model.train(False)
        self.hf_model = hf_model
        self.name = name
        self.reason = reason
        self.fingerprint = "cannot be linked"
        self.tokenizer = TextTokenizer(tokenizer)
        self.rope = Rope(torch.empty(0), 1.0, False, "none")
        self.window = int(getattr(config, "max_position_embeddings", None) or _DEFAULT_WINDOW)
        self.eos_ids = self.tokenizer.eos_ids | generation_eos(hf_model)
        parameters = inspect.signature(hf_model.forward).parameters
        known = (name for name in ("cache", "past_key_values") if name in parameters)
        self._cache_argument = next(known, "")

    def new_cache(self, capacity: int) -> PlainCache:
        """An empty cache; it grows as it is used."""
        return PlainCache(DynamicCache(config=self.hf_model.config) if self._cache_argument else None)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        *,
        slots: Tensor | None = None,
        logits_to_keep: int = 1,
        captured_keys: list[Tensor] | None = None,
        scores: ScoreSink | None = None,
    ) -> Tensor:
        """Append `token_ids` to the cache's; logits `[logits_to_keep, vocabulary]` of the last of them.

        Raises:
            TypeError: when the cache is not this model's.
            UnsupportedModelError: scores are wanted; transformers' own forward gives none.
        """
        if scores is not None:
            raise UnsupportedModelError(
                f"attention scores are wanted, but '{self.name}' cannot be linked ({self.reason}) and yields none: "
                "use --policy full"
            )
        if not isinstance(cache, PlainCache):
            raise TypeError(f"expected a PlainCache, got {type(cache).__name__}")
        cache.token_ids += token_ids.tolist()
        if cache.state is None:
            output = self.hf_model(input_ids=self.ids(cache.token_ids)[None])
        else:
            output = self.hf_model(input_ids=token_ids[None], use_cache=True, **{self._cache_argument: cache.state})
        cache.advance(len(cache.token_ids))
        return output.logits[0, -logits_to_keep:].float()  # type: ignore[no-any-return]
