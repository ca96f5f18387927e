"""Continuations of a linked prompt: forced token by token, or greedy; the prompt's KV is as before afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epic_rag.decode import DecodeOptions, decode
from epic_rag.evict import Keeping
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Ready:
    """A prompt whose KV is complete and evicted.

    Attributes:
        cache: its KV, with room for the longest continuation.
        logits: `[V]` fp32 of its last token.
        keeping: its budget.
    """

    cache: KVCache
    logits: Tensor
    keeping: Keeping


def force(model: LanguageModel, ready: Ready, answer: Sequence[int]) -> Tensor:
    """Log probabilities of the tokens of a continuation that is forced.

    Without a budget the rows are computed in one forward. Under a budget each token takes the slot of another, so they
    come one by one.

    Args:
        model: the language model.
        ready: the prompt.
        answer: A token ids, at least one.

    Returns:
        `[A, V]` fp64.
    """
    with _kept(ready) as (cache, keeping):
        rows = _one_by_one if keeping.keeper is not None else _at_once
        logits = torch.cat([ready.logits[None], *rows(model, cache, keeping, answer[:-1])])
    return logits.double().log_softmax(-1)


def greedy(model: LanguageModel, ready: Ready, max_tokens: int) -> str:
    """A greedy answer."""
    with _kept(ready) as (cache, keeping):
        pieces = list(decode(model, cache, ready.logits, DecodeOptions(max_tokens), keeping.keeper))
    return "".join(piece.text for piece in pieces).strip()


@contextmanager
def _kept(ready: Ready) -> Iterator[tuple[KVCache, Keeping]]:
    """Cache and budget to go on with; afterwards the prompt is as it was.

    Without a keeper the tokens come behind the prompt's and are forgotten by their number; a keeper overwrites.
    """
    if ready.keeping.keeper is not None:
        yield deepcopy((ready.cache, ready.keeping))
        return
    cache = ready.cache
    length, position = cache.length, cache.next_position
    try:
        yield cache, ready.keeping
    finally:
        cache.length, cache.next_position = length, position


def _at_once(model: LanguageModel, cache: KVCache, _: Keeping, tokens: Sequence[int]) -> Iterator[Tensor]:
    """Logits behind each token, `[len(tokens), V]`, in one tensor."""
    if tokens:
        positions = model.positions(cache.next_position, cache.next_position + len(tokens))
        slots = model.positions(cache.length, cache.length + len(tokens))
        yield model.forward(model.ids(tuple(tokens)), positions, cache, slots=slots, logits_to_keep=len(tokens))


def _one_by_one(model: LanguageModel, cache: KVCache, keeping: Keeping, tokens: Sequence[int]) -> Iterator[Tensor]:
    """Logits behind each token, `[1, V]` each, as `decode` computes them."""
    keeper = keeping.keeper
    for token in tokens:
        position, slot = cache.next_position, cache.length if keeper is None else keeper.next_slot()
        yield model.forward(
            model.ids([token]),
            model.positions(position, position + 1),
            cache,
            slots=model.positions(slot, slot + 1),
            scores=None if keeper is None else keeper.sink,
        )
