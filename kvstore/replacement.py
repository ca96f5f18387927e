"""Which entry of a full tier gives way: the one of the lowest rank, and among equals the one unused for longest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Use:
    """What is known about an entry at its latest use.

    Attributes:
        last_use: number of that use among all uses of the tier; no clock is involved.
        uses: how often it was used, storing it included.
        size_bytes: its size.
        cost_seconds: what it cost to make; 0 when unknown.
        floor: the highest rank that has given way so far; lets entries that were once valuable age.
    """

    last_use: int
    uses: int
    size_bytes: int
    cost_seconds: float
    floor: float


class Replacement(Protocol):
    """A replacement policy: ranks an entry at each use."""

    def rank(self, use: Use) -> float:
        """Return the entry's rank until its next use; the lowest gives way first."""
        ...


class LRU:
    """Least recently used."""

    def rank(self, use: Use) -> float:
        """Return the number of the use."""
        return float(use.last_use)


class LFU:
    """Least frequently used."""

    def rank(self, use: Use) -> float:
        """Return how often the entry was used."""
        return float(use.uses)


class GDSF:
    """Greedy-Dual-Size-Frequency: keeps what saves the most encode seconds per byte.

    Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998.
    """

    def rank(self, use: Use) -> float:
        """Return floor + uses * cost / size."""
        return use.floor + use.uses * use.cost_seconds / max(1, use.size_bytes)


POLICIES: Mapping[str, type[Replacement]] = {"lru": LRU, "lfu": LFU, "gdsf": GDSF}


def make_replacement(name: str) -> Replacement:
    """Return the policy of that name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in POLICIES:
        raise ValueError(f"replacement {name!r} is unknown: expected one of {', '.join(POLICIES)}")
    return POLICIES[name]()
