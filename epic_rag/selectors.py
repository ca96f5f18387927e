"""Which tokens of the passages are computed again when a prompt is linked. One small class a method, one registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epic_rag.errors import ConfigError


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


class Selector(Protocol):
    """Chooses context tokens to recompute. The suffix is always computed, whatever the selector says."""

    @property
    def name(self) -> str:
        """As written after `--selector`."""

    @property
    def needs_stored_kv(self) -> bool:
        """False when everything is computed again, so that nothing has to be loaded."""

    def positions(self, chunks: Sequence[ChunkSpan]) -> list[int]:
        """Positions to recompute, ascending."""


@dataclass(frozen=True, slots=True)
class NoneSelector:
    """`none`: reuse everything as stored; with a warm encoding this is LegoLink-0 of EPIC (arXiv 2410.15332)."""

    name: str = "none"
    needs_stored_kv: bool = True

    def positions(self, chunks: Sequence[ChunkSpan]) -> list[int]:
        """No position."""
        return []


@dataclass(frozen=True, slots=True)
class LegoSelector:
    """`lego:k`, LegoLink-k of EPIC (arXiv 2410.15332): the first k tokens of every chunk that is not exact already."""

    k: int
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`lego:k`."""
        return f"lego:{self.k}"

    def positions(self, chunks: Sequence[ChunkSpan]) -> list[int]:
        """Heads of the chunks, clipped to the chunk."""
        heads = (range(c.start, min(c.start + self.k, c.stop)) for c in chunks if not c.is_exact)
        return [position for head in heads for position in head]


@dataclass(frozen=True, slots=True)
class FullSelector:
    """`full`: a full prefill of the same token ids, the measure of everything else."""

    name: str = "full"
    needs_stored_kv: bool = False

    def positions(self, chunks: Sequence[ChunkSpan]) -> list[int]:
        """Every position of every chunk."""
        return [position for c in chunks for position in range(c.start, c.stop)]


_SELECTORS: dict[str, tuple[re.Pattern[str], Callable[[re.Match[str]], Selector]]] = {
    "none": (re.compile(r"none"), lambda _: NoneSelector()),
    "lego:K": (re.compile(r"lego:(\d{1,6})"), lambda match: LegoSelector(int(match[1]))),
    "full": (re.compile(r"full"), lambda _: FullSelector()),
}


def parse_selector(text: str) -> Selector:
    """The selector that `text` names.

    Raises:
        ConfigError: lists what there is.
    """
    for pattern, make in _SELECTORS.values():
        match = pattern.fullmatch(text.strip())
        if match:
            return make(match)
    raise ConfigError(f"unknown selector '{text}': expected one of {', '.join(_SELECTORS)} (K: tokens per passage)")
