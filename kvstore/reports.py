"""What the KV store answers with."""

from dataclasses import dataclass

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
    """What `verify` found: how many blobs were checked, and (name, reason) of each damaged one."""

    checked: int
    damaged: list[tuple[str, str]]
