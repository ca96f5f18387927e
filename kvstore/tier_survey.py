"""What several tiers hold together, each blob counted once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epic_rag.kvstore.blobstore import BlobNote, BlobStore, Usage
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import LENGTH_BYTES, describe, header_bytes
from epic_rag.kvstore.tierstats import add_usage


class Holding(NamedTuple):
    """What one tier holds."""

    tier: BlobStore
    usage: Mapping[str, Usage]
    names: Sequence[str]


def joint_usage(holdings: Sequence[Holding]) -> dict[str, Usage]:
    """Return what each profile takes in several tiers together.

    The tier that holds the most says what it has; of the others only the blobs that it lacks are looked at, which are
    few where everything is written to every tier.
    """
    most, *others = sorted(holdings, key=lambda holding: len(holding.names), reverse=True)
    usage, seen = dict(most.usage), set(most.names)
    for tier, _, names in others:
        for name in names:
            size_bytes = None if name in seen else tier.size_bytes(name)
            if size_bytes is not None:
                add_usage(usage, note_of(tier, name), size_bytes)
                seen.add(name)
    return usage


def note_of(tier: BlobStore, name: str) -> BlobNote:
    """Return what bookkeeping keeps about a blob, from its header, read by range."""
    try:
        head = tier.get_range(name, 0, LENGTH_BYTES)
        whole_head = None if head is None else tier.get_range(name, 0, header_bytes(head))
    except StoreFormatError:
        return BlobNote()
    return BlobNote() if whole_head is None else describe(whole_head)
