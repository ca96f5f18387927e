"""The identity of a model's weights and of its tokenizer: digests of their content, never of their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

_VOLATILE = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
    "use_cache",
    "quantization_config",
}


def config_digest(config: PretrainedConfig) -> str:
    """Digest of what the configuration says beyond the defaults; names and library versions left out."""
    said = {name: value for name, value in config.to_diff_dict().items() if name not in _VOLATILE}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """sha256 over every tensor of the state dict (adapters included) with its name, dtype and shape."""
    total = hashlib.sha256()
    seen: dict[tuple[int, tuple[int, ...]], bytes] = {}  # tied tensors are hashed once
    for name, tensor in sorted(model.state_dict().items()):
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if place not in seen:
            flat = tensor.detach().contiguous().cpu().flatten().view(torch.uint8)
            seen[place] = hashlib.sha256(flat.numpy().data).digest()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(seen[place])
    return total.hexdigest()


def model_fingerprint(model: nn.Module, config: PretrainedConfig, files: Iterable[Path], cache_folder: Path) -> str:
    """Digest of configuration and weights, remembered per set of weight files.

    Args:
        model: the loaded model.
        config: its configuration.
        files: the local files it was read from; none when it was handed over in memory, then nothing is remembered.
        cache_folder: where the weights' digest is remembered under the files' stamps.
    """
    stamps = [_stamp(path) for path in sorted(files)]
    dtype = str(next(model.parameters()).dtype)
    note = cache_folder / "fingerprints" / hashlib.sha256(json.dumps([stamps, dtype]).encode()).hexdigest()
    weights = _read_note(note) if stamps else None
    if weights is None:
        weights = weights_digest(model)
        if stamps:
            _write_note(note, weights)
    return hashlib.sha256(f"{config_digest(config)}|{weights}".encode()).hexdigest()


def _stamp(path: Path) -> tuple[str | int, ...]:
    """What changes when a file does: a copy may bring its size and modification time along, never inode and ctime."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _read_note(note: Path) -> str | None:
    try:
        text = note.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) == 64 and set(text) <= set("0123456789abcdef") else None


def _write_note(note: Path, digest: str) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest, encoding="ascii")
    except OSError:
        return  # only a convenience: the digest is computed again next time


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of everything that decides how text becomes token ids."""
    if tokenizer.is_fast:
        described = json.loads(tokenizer.backend_tokenizer.to_str())
        described.pop("truncation", None)
        described.pop("padding", None)
    else:
        added = {str(index): token.content for index, token in tokenizer.added_tokens_decoder.items()}
        described = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "added": added}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
