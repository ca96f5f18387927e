"""Checking every byte that a store holds."""

import logging
from collections.abc import Callable
from typing import TypeAlias

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError, StoreWriteError
from epic_rag.kvstore.keys import is_key
from epic_rag.kvstore.reports import VerifyReport

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many blobs are done, and how many there are."""

_log = logging.getLogger("epic_rag.kvstore")


def scrub(
    blobs: BlobStore,
    check: Callable[[str, Buffer], object],
    progress: Progress | None,
    damaged: Callable[[str, StoreFormatError], None] | None,
) -> VerifyReport:
    """Check every chunk and record; other bytes are passed over, since only their owner knows what they should be.

    Args:
        blobs: the store; its bookkeeping is made to agree with what it holds.
        check: raises StoreFormatError on a flaw.
        progress: told how far it is.
        damaged: called with each damaged blob; it may take it out of use.
    """
    try:
        blobs.reconcile()
    except StoreWriteError as error:
        _log.warning("the bookkeeping stays as it is (%s)", error)
    names = [name for name in blobs.names() if is_ours(name)]
    bad: list[tuple[str, str]] = []
    unreadable: list[tuple[str, str]] = []
    gone: list[str] = []
    for done, name in enumerate(names, 1):
        view = blobs.get_range(name, 0, blobs.size_bytes(name) or 0)
        try:
            if view is None:
                gone.append(name)
            else:
                check(name, view)
        except StoreVersionError as error:
            unreadable.append((name, str(error)))
        except StoreFormatError as error:
            bad.append((name, str(error)))
            if damaged is not None:
                damaged(name, error)
        if progress is not None:
            progress(done, len(names))
    # What was deleted meanwhile is not missed; what is still listed cannot be read.
    listed = set(blobs.names()) if gone else set()
    bad += [(name, "is listed, but cannot be read") for name in gone if name in listed]
    return VerifyReport(len(names) - len(set(gone) - listed), bad, unreadable)


def is_ours(name: str) -> bool:
    """Return whether a blob of this name is a chunk or a record, and not some other user's bytes."""
    return name.startswith(RECORD_PREFIX) or is_key(name)
