"""What tiers answer with: notes, usage, numbers, and bytes with the tier that had them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlobNote:
    """What a tier's bookkeeping keeps about a blob; read from the blob's own header when it is put.

    Attributes:
        profile: digest of the encoding profile; empty for records and other bytes.
        tokens: tokens of the chunk.
        cost_seconds: what it cost to make; 0 when unknown.
    """

    profile: str = ""
    tokens: int = 0
    cost_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the blobs of one profile take in a tier."""

    entries: int
    bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A blob's bytes, and the tier that had them."""

    view: memoryview
    tier: str


@dataclass(frozen=True, slots=True)
class TierStats:
    """A tier in numbers. Entries and bytes are what it holds; the rest was counted since this object opened it.

    Attributes:
        tier: "memory", "disk", "redis"; "tiered" for several together.
        entries: blobs held, records included.
        bytes: bytes of these blobs.
        budget_bytes: the most it may hold; None for no limit.
        hits: reads that found their blob.
        misses: reads that did not.
        puts: blobs written.
        replaced: blobs that gave way to others under the budget.
        corrupt: blobs quarantined.
        read_bytes: bytes of the hits.
        written_bytes: bytes of the puts.
        failures: calls that the tier could not serve.
        read_seconds: time that `get` and `get_many` took, misses included.
        write_seconds: time that `put` took.
    """

    tier: str
    entries: int
    bytes: int
    budget_bytes: int | None
    hits: int
    misses: int
    puts: int
    replaced: int
    corrupt: int
    read_bytes: int
    written_bytes: int
    failures: int = 0
    read_seconds: float = 0.0
    write_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TieredCounts:
    """What happened between the tiers since the store was opened, in blobs.

    Attributes:
        promoted: copied to a faster tier after a read.
        promotions_dropped: not copied: too much was waiting, or the blob changed meanwhile.
        promotions_failed: the faster tier did not take it.
        written_back: written to a slower tier in the background.
        write_backs_failed: the slower tier did not take it.
        prefetched: loaded into the fastest tier ahead of a read.
        prefetches_failed: not loaded, though a slower tier had it.
    """

    promoted: int = 0
    promotions_dropped: int = 0
    promotions_failed: int = 0
    written_back: int = 0
    write_backs_failed: int = 0
    prefetched: int = 0
    prefetches_failed: int = 0


def add_usage(usage: dict[str, Usage], note: BlobNote, size_bytes: int) -> None:
    """Count one more blob in `usage`, which is by profile digest."""
    sofar = usage.get(note.profile, Usage(0, 0, 0))
    usage[note.profile] = Usage(sofar.entries + 1, sofar.bytes + size_bytes, sofar.tokens + note.tokens)
