"""`a+b`: what several selectors choose."""

from __future__ import annotations

from dataclasses import dataclass

from epic_rag.selectors.base import Linking, OneRound, Selection


@dataclass(frozen=True, slots=True)
class CombinedSelector(OneRound):
    """`a+b`, such as `lego:4+query:0.05`: the union, each part chosen on the KV as placed; the costs add up."""

    parts: tuple[OneRound, ...]
    name: str
    needs_stored_kv: bool = True

    def select(self, linking: Linking) -> Selection:
        """The union of the parts' positions."""
        chosen = [part.select(linking) for part in self.parts]
        positions = {position for one in chosen for position in one.positions}
        return Selection(tuple(sorted(positions)), sum(one.cost_rows for one in chosen))
