"""`query:r`: the blocks of the passages that this very question looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epic_rag.config import DEFAULT_SHARE, NEUTRAL_QUESTION
from epic_rag.prompt import prompt_frame
from epic_rag.selectors.base import ChunkSpan, Linking, Ranking
from epic_rag.selectors.scratch import ScratchCache

BLOCK_TOKENS = 16
"""Tokens computed again together. A token that is computed again reads its neighbours: runs repair more than as many
scattered picks."""


@dataclass(frozen=True, slots=True)
class QuerySelector(Ranking):
    """`query:r`: blocks by what the question attends more than a neutral question does, until r of the context tokens.

    The question's rows run over the stored KV, and so do those of a question that asks for nothing in particular. A
    token counts by the ratio of what it receives from the two, each raised by the median token's share, so that noise
    on tokens that nobody looks at does not count. What every question attends (attention sinks, heads of chunks) has a
    ratio near one, however much it is.

    Choosing by the question's attention over reused KV is in ProphetKV, QCFuse, FusionRAG and CacheClip; the neutral
    question and the ratio are this project's own.
    """

    share: float = DEFAULT_SHARE
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`query:r`."""
        return f"query:{self.share:g}"

    def ranked(self, linking: Linking) -> tuple[list[int], float]:
        """Open positions, block by block, and the rows of the two questions."""
        suffix, neutral = linking.prompt.suffix_ids, neutral_suffix(linking)
        asked, usual = attention_received(linking, suffix), attention_received(linking, neutral)
        floor = usual.median()
        importance = (asked + floor) / (usual + floor)
        return by_blocks(importance, linking.chunks), float(len(suffix) + len(neutral))


@dataclass(frozen=True, slots=True)
class PlainQuerySelector(Ranking):
    """`query-plain:r`: as `query:r`, by the question's attention alone; there to be compared with.

    It mostly finds attention sinks: on isolated encodings the heads of the chunks.
    """

    share: float = DEFAULT_SHARE
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`query-plain:r`."""
        return f"query-plain:{self.share:g}"

    def ranked(self, linking: Linking) -> tuple[list[int], float]:
        """Open positions, block by block, and the rows of the question."""
        suffix = linking.prompt.suffix_ids
        return by_blocks(attention_received(linking, suffix), linking.chunks), float(len(suffix))


def neutral_suffix(linking: Linking) -> tuple[int, ...]:
    """A suffix like the prompt's that asks for nothing in particular."""
    tokenizer = linking.model.tokenizer
    return prompt_frame(tokenizer).suffix(tokenizer.encode(NEUTRAL_QUESTION))


class _Received:
    """Adds up what slots receive, over heads and layers."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self._num_slots = stop - start
        self._layers: list[Tensor] = []

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Take one layer; see `ScoreSink`."""
        self._layers.append(sums[:, : self._num_slots].mean(dim=0))

    def mean(self, num_rows: int) -> Tensor:
        """`[slots]` fp32: a row's mean over heads and layers."""
        return torch.stack(self._layers).mean(dim=0) / num_rows


def attention_received(linking: Linking, suffix_ids: Sequence[int]) -> Tensor:
    """What each context token receives from a suffix, over the KV as it stands.

    Returns:
        `[tokens of all chunks]` fp32: probability, mean over the suffix's rows, over heads and layers.
    """
    model, start = linking.model, linking.prompt.suffix_start
    rows = model.positions(start, start + len(suffix_ids))
    received = _Received(linking.chunks[0].start, start)
    scratch = ScratchCache(linking.cache, start + len(suffix_ids))
    model.forward(model.ids(tuple(suffix_ids)), rows, scratch, scores=received)
    return received.mean(len(suffix_ids))


def by_blocks(importance: Tensor, chunks: Sequence[ChunkSpan]) -> list[int]:
    """Positions of the open chunks in blocks, the most important block first; of equals the first in the prompt.

    Args:
        importance: one number for each token of `chunks`, which follow each other.
        chunks: where they stand. A block lies inside one of them; its last block may be shorter.
    """
    values, offset = importance.tolist(), chunks[0].start
    blocks = [
        range(start, min(start + BLOCK_TOKENS, chunk.stop))
        for chunk in chunks
        if not chunk.is_exact
        for start in range(chunk.start, chunk.stop, BLOCK_TOKENS)
    ]
    blocks.sort(key=lambda block: -sum(values[p - offset] for p in block) / len(block))
    return [position for block in blocks for position in block]
