"""Which compile prefix chunks are encoded behind: `none`, `sinks`, `prompt` or `warm:n`.

Why a warm prefix makes linked answers better is told in docs/architecture.md, "Warm prefix".
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from epic_rag.config import CORPUS_FACTOR, NEUTRAL_MARK
from epic_rag.errors import ConfigError
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.model import LanguageModel
from epic_rag.prompt import PromptFrame

DEFAULT_ENCODING = "warm:600"
_KNOWN = "none, sinks, prompt, warm:N (N tokens of other chunks, for example warm:600)"
_NUM_SINKS = 4
"""EPIC (arXiv 2410.15332) and StreamingLLM (arXiv 2309.17453) both use four."""
_SHORTEST_WARM_CHUNK = 32
"""Tokens; shorter chunks are headings and remnants, which say little about the corpus."""


def check_encoding(encoding: str) -> str:
    """Return `encoding` if it is known.

    Raises:
        ConfigError: lists what there is.
    """
    if encoding in {"none", "sinks", "prompt"} or _warm_tokens(encoding):
        return encoding
    raise ConfigError(f"unknown encoding '{encoding}': expected one of {_KNOWN}")


def split_encoding(encoding: str) -> tuple[str, str]:
    """The encoding of a prompt's first chunk and that of the others: `prompt/warm:600`, or one name for both."""
    first, _, others = encoding.partition("/")
    return first, others or first


def make_profile(
    model: LanguageModel, frame: PromptFrame, encoding: str, corpus: Iterable[Sequence[int]], salt: str = ""
) -> EncodingProfile:
    """Choose the compile prefix for a corpus; the same chunks in any order give the same profile.

    Args:
        model: encodes the chunks.
        frame: the prompt around the passages; its prefix stands first in `prompt` and `warm` prefixes.
        encoding: as given by the user.
        corpus: token ids of the chunks known so far; read once, and only for `warm`.
        salt: tenant; a warm prefix must never hold another tenant's chunks.

    Raises:
        ConfigError: unknown encoding.
    """
    check_encoding(encoding)
    prefix: tuple[int, ...] = ()
    if encoding == "sinks":
        prefix = _sinks(model)
    elif encoding != "none":
        prefix = frame.prefix_ids
    num_tokens = _warm_tokens(encoding)
    if num_tokens:
        lent = _lend(corpus, num_tokens)
        if lent is None:
            encoding, lent = encoding + NEUTRAL_MARK, model.tokenizer.encode(neutral_text())[:num_tokens]
        prefix = (*prefix, *lent)
    return _profile(model, encoding, prefix, salt)


def exact_profile(model: LanguageModel, salt: str = "") -> EncodingProfile:
    """The profile of tokens that stand at the very beginning of a prompt: nothing in front of them."""
    return _profile(model, "none", (), salt)


def neutral_text() -> str:
    """The text that stands in for a corpus too small to lend chunks; off-domain text still closes most of the gap."""
    return files("epic_rag").joinpath("neutral.txt").read_text(encoding="utf-8")


def _profile(model: LanguageModel, encoding: str, prefix_ids: Sequence[int], salt: str) -> EncodingProfile:
    return EncodingProfile(
        model_fingerprint=model.fingerprint,
        model_name=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        rope=model.rope.description,
        tokenizer_digest=model.tokenizer.digest,
        encoding=encoding,
        prefix_ids=tuple(prefix_ids),
        salt=salt,
    )


def _warm_tokens(encoding: str) -> int:
    match = re.fullmatch(r"warm:(\d{1,5})", encoding)
    return int(match[1]) if match else 0


def _sinks(model: LanguageModel) -> tuple[int, ...]:
    one = model.tokenizer.bos_ids or model.tokenizer.encode("\n")
    return tuple(one[:1] * _NUM_SINKS)


def _lend(corpus: Iterable[Sequence[int]], num_tokens: int) -> list[int] | None:
    """The first `num_tokens` tokens of distinct chunks in the order of their digests, or None if there are too few."""
    total = 0
    candidates: dict[bytes, tuple[int, ...]] = {}
    most = num_tokens // _SHORTEST_WARM_CHUNK + 1
    for chunk in corpus:
        if len(chunk) < _SHORTEST_WARM_CHUNK:
            continue
        digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in chunk)).digest()
        if digest not in candidates:
            total += len(chunk)
            candidates[digest] = tuple(chunk)
        if len(candidates) > 4 * most:  # keeps the memory flat over a large corpus
            candidates = dict(heapq.nsmallest(most, candidates.items()))
    if total < CORPUS_FACTOR * num_tokens:
        return None
    lent: list[int] = []
    for _, chunk in heapq.nsmallest(most, candidates.items()):
        lent += chunk
    return lent[:num_tokens]
