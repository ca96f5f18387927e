"""What the KV store answers with."""

from dataclasses import dataclass, field

from epic_rag.kvstore.blobstore import TierStats
from epic_rag.kvstore.tensors import ChunkKV


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A chunk's KV as it was found.

    Attributes:
        kv: the KV, on the CPU; its tensors may be views of a file mapping that lives as long as they do.
        tier: the tier that had it.
        num_bytes: bytes of its blob.
    """

    kv: ChunkKV
    tier: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ProfileStats:
    """What the chunks of one encoding profile take."""

    digest: str
    entries: int
    bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The store in numbers. The first four are what it holds; hits and the rest were counted since it was opened.

    Attributes:
        entries: chunks held.
        bytes: bytes of their blobs.
        tokens: tokens of these chunks.
        profiles: the same by encoding profile.
        tiers: each tier in numbers, records included.
        hits: reads that found good KV.
        misses: reads that did not, for whatever reason.
        mismatched: misses where the stored tokens were others than those asked for.
        damaged: blobs found damaged, and quarantined.
    """

    entries: int
    bytes: int
    tokens: int
    profiles: tuple[ProfileStats, ...]
    tiers: tuple[TierStats, ...]
    hits: int
    misses: int
    mismatched: int
    damaged: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        checked: chunks and profiles that were looked at.
        damaged: (name, reason) of each damaged one, or one without the MAC that it must have.
        unreadable: (name, reason) of each that is intact as far as can be seen, but of a version or codec that this
            program does not know.
    """

    checked: int
    damaged: list[tuple[str, str]]
    unreadable: list[tuple[str, str]] = field(default_factory=list)
