"""What a selector is given, what it answers, and how it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Where a chunk stands in the prompt.

    Attributes:
        start: position of its first token.
        stop: position behind its last token.
        is_exact: its stored KV is what a full prefill would compute here, so nothing needs to be computed again.
    """

    start: int
    stop: int
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Linking:
    """A prompt about to be linked.

    Attributes:
        model: the language model.
        prompt: N token ids; the whole suffix counts as the question.
        chunks: where the chunks stand, in order.
        cache: placed KV of prefix and chunks, at their positions; to be read only. Empty where nothing was loaded.
    """

    model: LanguageModel
    prompt: Prompt
    chunks: tuple[ChunkSpan, ...]
    cache: KVCache

    @property
    def open_chunks(self) -> tuple[ChunkSpan, ...]:
        """The chunks that are not exact: what can be chosen from."""
        return tuple(chunk for chunk in self.chunks if not chunk.is_exact)

    @property
    def open_positions(self) -> list[int]:
        """Their tokens' positions, ascending."""
        return [position for chunk in self.open_chunks for position in range(chunk.start, chunk.stop)]

    def count(self, share: float) -> int:
        """How many of the open chunks' tokens a share in (0, 1] is: rounded, and at least one where there are any."""
        num_open = sum(chunk.stop - chunk.start for chunk in self.open_chunks)
        return max(1, round(share * num_open)) if num_open else 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What one round computes again, besides the suffix.

    Attributes:
        positions: of context tokens, ascending.
        cost_rows: what choosing them took, in rows through all layers.
        is_last: no other round follows, whatever this one's logits are.
    """

    positions: tuple[int, ...]
    cost_rows: float = 0.0
    is_last: bool = True


Rounds = Generator[Selection, Tensor, None]
"""Yields what to compute, is sent the last row's logits (`[vocabulary]`, fp32), and ends when that was enough."""


class Selector(Protocol):
    """Chooses context tokens to recompute. The suffix is always computed, whatever the selector says."""

    @property
    def name(self) -> str:
        """As it can be written after `--selector`."""
        ...

    @property
    def needs_stored_kv(self) -> bool:
        """False when everything is computed again, so that nothing has to be loaded."""
        ...

    def rounds(self, linking: Linking) -> Rounds:
        """The rounds, at least one. What a round computes is in `linking.cache` when the next one is chosen."""
        ...


class OneRound(ABC):
    """A selector that chooses once."""

    __slots__ = ()

    @abstractmethod
    def select(self, linking: Linking) -> Selection:
        """Choose on the KV as it was placed, and leave that as it is."""

    def rounds(self, linking: Linking) -> Rounds:
        """The one round."""
        yield self.select(linking)


class Ranking(OneRound):
    """A selector that ranks the tokens of the open chunks and takes a share of them."""

    __slots__ = ()

    share: float

    @abstractmethod
    def ranked(self, linking: Linking) -> tuple[list[int], float]:
        """Every open position, the one to compute first in front, and what ranking took, in rows through all layers."""

    def select(self, linking: Linking) -> Selection:
        """The share that ranks first; where there is nothing to choose from, nothing is computed for it either."""
        count = linking.count(self.share)
        if not count:
            return Selection(())
        positions, cost_rows = self.ranked(linking)
        return Selection(tuple(sorted(positions[:count])), cost_rows)
