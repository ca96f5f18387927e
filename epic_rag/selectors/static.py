"""Selectors that only look at where the chunks stand."""

from __future__ import annotations

from dataclasses import dataclass

from epic_rag.selectors.base import Linking, OneRound, Selection


@dataclass(frozen=True, slots=True)
class NoneSelector(OneRound):
    """`none`: reuse everything as stored; with a warm encoding this is LegoLink-0 of EPIC (arXiv 2410.15332)."""

    name: str = "none"
    needs_stored_kv: bool = True

    def select(self, linking: Linking) -> Selection:
        """No position."""
        return Selection(())


@dataclass(frozen=True, slots=True)
class LegoSelector(OneRound):
    """`lego:k`, LegoLink-k of EPIC (arXiv 2410.15332): the first k tokens of every chunk that is not exact already."""

    k: int
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`lego:k`."""
        return f"lego:{self.k}"

    def select(self, linking: Linking) -> Selection:
        """Heads of the chunks, clipped to the chunk."""
        heads = (range(c.start, min(c.start + self.k, c.stop)) for c in linking.open_chunks)
        return Selection(tuple(position for head in heads for position in head))


@dataclass(frozen=True, slots=True)
class FullSelector(OneRound):
    """`full`: a full prefill of the same token ids, the measure of everything else."""

    name: str = "full"
    needs_stored_kv: bool = False

    def select(self, linking: Linking) -> Selection:
        """Every position in front of the suffix, the prefix's too: nothing was loaded."""
        return Selection(tuple(range(linking.prompt.suffix_start)))
