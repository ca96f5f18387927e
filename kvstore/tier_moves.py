"""What a tiered store does between its tiers in the background: promotion, write-back, prefetch."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from itertools import count
from threading import Lock

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.errors import StoreError
from epic_rag.kvstore.name_locks import NameLocks
from epic_rag.kvstore.prefetch import Prefetch
from epic_rag.kvstore.tier_queue import Job, TierQueue
from epic_rag.kvstore.tierstats import TieredCounts


def whole(tier: BlobStore, name: str) -> memoryview | None:
    """Read a blob without counting it as a hit or a use."""
    return tier.get_range(name, 0, sys.maxsize)


class Moves:
    """Copies blobs from tier to tier, in two threads: one that loads ahead, one for all the rest."""

    def __init__(
        self,
        tiers: Sequence[BlobStore],
        queue_bytes: int,
        locks: NameLocks,
        failed: Callable[[int, Exception], None],
    ) -> None:
        """Prepare.

        Args:
            tiers: fastest first.
            queue_bytes: the most that may wait in memory.
            locks: who changes a blob holds its lock, and calls `drop`.
            failed: is told the number of a tier that failed, and how.
        """
        self._tiers = tiers
        self._locks = locks
        self._failed = failed
        self._copies = TierQueue(queue_bytes, locks.held)
        self._loads = TierQueue(queue_bytes, lambda _: nullcontext())
        self._load_numbers = count()
        self._handles: set[Prefetch] = set()
        self._closing = False
        # What waits to be written, by name and tier; changed under the blob's lock only.
        self._waiting: dict[tuple[str, int], memoryview] = {}
        self._counts = dict.fromkeys((field.name for field in fields(TieredCounts)), 0)
        self._counts_lock = Lock()

    def counts(self) -> TieredCounts:
        """Return what happened so far."""
        with self._counts_lock:
            return TieredCounts(**self._counts)

    def epoch(self, name: str) -> int:
        """Return what `promote` is to be given with bytes that are read from now on."""
        return self._copies.epoch(name)

    def drop(self, name: str) -> bool:
        """Forget what waits to be done with a blob: it changes. Returns whether bytes of it waited to be written."""
        self._copies.drop(name)
        waited = [self._waiting.pop((name, index), None) for index in range(len(self._tiers))]
        return any(view is not None for view in waited)

    def waiting(self, name: str, index: int) -> memoryview | None:
        """Return the bytes that a tier does not have yet, where some wait for it: its own are older."""
        return self._waiting.get((name, index))

    def waiting_names(self) -> set[str]:
        """Return the names of the blobs that wait to be written to some tier."""
        return {name for name, _ in list(self._waiting)}

    def promote(self, name: str, view: memoryview, source: int, epoch: int) -> None:
        """Copy a blob that tier `source` had to the faster ones, before long."""
        if source == 0:
            return
        # The reader may write into its view. A tier of this machine is simply read again.
        kept = None
        if self._tiers[source].remote:
            kept = view if view.readonly else memoryview(bytes(view))
        job = Job(name, lambda: self._promote(name, kept, source), kept.nbytes if kept else 0)
        if not self._copies.add(("promote", name), job, epoch):
            self._count("promotions_dropped")

    def write_back(self, name: str, taken: Sequence[int], target: int) -> bool:
        """Write a blob to tier `target` before long; returns False where it has to be written at once.

        Args:
            name: its name.
            taken: the tiers that have it by now; the bytes of the fastest are what is written.
            target: the tier to be written.
        """
        found = whole(self._tiers[min(taken)], name)
        if found is None:
            return False
        view = found.toreadonly()  # readers may be given it meanwhile
        self._waiting[name, target] = view
        job = Job(name, lambda: self._write_back(name, view, target), view.nbytes, needed=True)
        if self._copies.add(("write", name, target), job):
            return True
        del self._waiting[name, target]
        return False

    def prefetch(self, names: Sequence[str]) -> Prefetch:
        """Load blobs into the fastest tier, before long."""
        handle = Prefetch()
        self._handles.add(handle)
        number = next(self._load_numbers)
        if not self._loads.add(number, Job(f"prefetch-{number}", lambda: self._prefetch(names, handle))):
            handle.cancel()
            self._finish(handle)
        return handle

    def flush(self, timeout_seconds: float | None) -> bool:
        """Wait until every write-back is done; returns whether it is."""
        return self._copies.flush(timeout_seconds)

    def close(self) -> None:
        """Do the write-backs that wait, and end; promotions and loads are left out."""
        self._closing = True
        self._loads.close()
        for handle in list(self._handles):
            handle.cancel()
            self._finish(handle)
        self._copies.close()

    def _promote(self, name: str, kept: memoryview | None, source: int) -> None:
        view = kept if kept is not None else self._newest(name, source)
        if view is not None:
            for target in reversed(range(source)):
                self._count("promoted" if self._copy(name, view, target) else "promotions_failed")

    def _write_back(self, name: str, view: memoryview, target: int) -> None:
        try:
            self._tiers[target].put(name, view)
        except (StoreError, OSError) as error:
            self._failed(target, error)
            self._count("write_backs_failed")
            with suppress(StoreError, OSError):
                self._tiers[target].delete(name)  # it may still have what was there before
        else:
            self._count("written_back")
        finally:
            self._waiting.pop((name, target), None)

    def _prefetch(self, names: Sequence[str], handle: Prefetch) -> None:
        try:
            for name in dict.fromkeys(names):
                if handle.cancelled or self._closing:
                    return
                self._load(name)
        finally:
            self._finish(handle)

    def _finish(self, handle: Prefetch) -> None:
        self._handles.discard(handle)
        handle.finish()

    def _load(self, name: str) -> None:
        try:
            if self._tiers[0].contains([name])[0]:
                self._tiers[0].prefetch([name])
                return
            with self._locks.held(name):
                views = (self._newest(name, index) for index in range(1, len(self._tiers)))
                view = next((view for view in views if view is not None), None)
                if view is not None:
                    self._count("prefetched" if self._copy(name, view, 0) else "prefetches_failed")
        except (StoreError, OSError):
            self._count("prefetches_failed")

    def _newest(self, name: str, index: int) -> memoryview | None:
        view = self.waiting(name, index)
        return whole(self._tiers[index], name) if view is None else view

    def _copy(self, name: str, view: memoryview, target: int) -> bool:
        """Put a blob into a tier that lacks it; returns whether it is there now, which a small tier may refuse."""
        try:
            if not self._tiers[target].contains([name])[0]:
                self._tiers[target].put(name, view)
        except (StoreError, OSError):
            return False
        return True

    def _count(self, what: str) -> None:
        with self._counts_lock:
            self._counts[what] += 1
