"""Several tiers as one store: the fastest that has a blob serves it, and the faster ones get it for the next time."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from epic_rag.kvstore.blobstore import BlobStore, Found, TierStats, Usage
from epic_rag.kvstore.errors import StoreError, StoreWriteError
from epic_rag.kvstore.name_locks import NameLocks
from epic_rag.kvstore.prefetch import Prefetch
from epic_rag.kvstore.tier_moves import Moves, whole
from epic_rag.kvstore.tier_survey import Holding, joint_usage
from epic_rag.kvstore.tierstats import TieredCounts

WARN_EVERY_SECONDS = 60.0
FLUSH_SECONDS = 5.0
"""How long statistics wait for what is being written in the background."""


T = TypeVar("T")

_log = logging.getLogger("epic_rag.kvstore")


class TieredStore(BlobStore):
    """Blobs in several tiers, fastest first.

    A read asks one tier after the other, and what a slower one had is copied to the faster ones in the background. A
    write goes to every tier at once, or to some of them in the background. A tier that fails is passed over, with a
    warning now and then; a read never raises for it, and a write succeeds when one tier took it.

    Blobs are expected to be content-addressed, as KV is: when another process puts other bytes under a name, or deletes
    it, the tiers that are this process's alone keep what they have.
    """

    def __init__(
        self, tiers: Sequence[BlobStore], write_back: Sequence[bool] = (), queue_bytes: int = 256 << 20
    ) -> None:
        """Take ownership of the tiers: `close` closes them.

        Args:
            tiers: fastest first; at least one.
            write_back: for each tier whether it is written in the background; default for none. Bytes that wait are
                written by `flush` and `close`; a crash loses them for that tier.
            queue_bytes: the most that may wait; above it, a write is done at once and a promotion left out.

        Raises:
            ValueError: no tier, or none that is written at once.
        """
        super().__init__()
        self._back = list(write_back) or [False] * len(tiers)
        if len(self._back) != len(tiers) or all(self._back):
            raise ValueError(f"{len(tiers)} tiers, write_back {self._back}: expected one that is written at once")
        self._tiers = list(tiers)
        # Who changes a blob holds its lock, so that its tiers get the same bytes.
        self._locks = NameLocks()
        self._warned_at: dict[int, float] = {}
        self._moves = Moves(self._tiers, queue_bytes, self._locks, self._failed)

    def __repr__(self) -> str:
        return f"TieredStore({', '.join(tier.tier for tier in self._tiers)})"

    @property
    def tier(self) -> str:
        """The store's name, "tiered"; `find` tells the tier that had a blob."""
        return "tiered"

    @property
    def remote(self) -> bool:
        """Whether the fastest tier is."""
        return self._tiers[0].remote

    def get_many(self, names: Sequence[str]) -> list[memoryview | None]:
        """Return `get` of each name; each tier is asked once, for what the faster ones lack."""
        return [None if found is None else found.view for found in self.find_many(names)]

    def get(self, name: str) -> memoryview | None:
        """Return the blob's bytes, or None; counts as a use of the blob in the tier that has it."""
        return self.get_many([name])[0]

    def find_many(self, names: Sequence[str]) -> list[Found | None]:
        """Return what `get_many` returns, and which tier had each."""
        self._check(*names)
        epochs = [self._moves.epoch(name) for name in names]
        found: list[Found | None] = [None] * len(names)
        with self._timed("read"):
            for index, tier in enumerate(self._tiers):
                missing = [i for i, one in enumerate(found) if one is None]
                with self._passing_over(index):
                    for i, view in zip(missing, self._get_many(index, [names[i] for i in missing]), strict=True):
                        if view is not None:
                            found[i] = Found(view, tier.tier)
                            self._moves.promote(names[i], view, index, epochs[i])
        sizes = [one.view.nbytes for one in found if one is not None]
        self._count(hits=len(sizes), misses=len(names) - len(sizes), read=sum(sizes))
        return found

    def contains(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether a tier has it; not a use."""
        self._check(*names)
        there: set[str] = set()
        for index, tier in enumerate(self._tiers):
            there.update(name for name in names if self._moves.waiting(name, index) is not None)
            missing = [name for name in names if name not in there]
            with self._passing_over(index):
                there.update(name for name, yes in zip(missing, tier.contains(missing), strict=True) if yes)
        return [name in there for name in names]

    def prefetch(self, names: Sequence[str]) -> Prefetch:
        """Start loading blobs that only slower tiers have into the fastest one, in the background.

        Errors reach nobody; `counts` tells them.
        """
        self._check(*names)
        return self._moves.prefetch(names)

    def touch(self, names: Sequence[str]) -> None:
        """Count a use of each of these blobs, in every tier."""
        self._check(*names)
        self._touch(names)

    def each_tier(self) -> Sequence[BlobStore]:
        """Return the tiers, fastest first."""
        return tuple(self._tiers)

    def tiers(self) -> tuple[TierStats, ...]:
        """Return each tier in numbers, fastest first; one that fails now is shown empty."""
        self._check()
        numbers = [tier.numbers({}) for tier in self._tiers]
        for index, tier in enumerate(self._tiers):
            with self._passing_over(index):
                numbers[index] = tier.stats()
        return tuple(numbers)

    def counts(self) -> TieredCounts:
        """Return what happened between the tiers."""
        return self._moves.counts()

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until what is written in the background is written; returns whether it is."""
        self._check()
        return self._moves.flush(timeout_seconds)

    def reconcile(self) -> None:
        """Make each tier's bookkeeping agree with what is really stored."""
        self._check()
        self._all(lambda tier: tier.reconcile())

    def _read(self, name: str) -> memoryview | None:
        return self._read_range(name, 0, sys.maxsize)

    def _read_range(self, name: str, start: int, length: int) -> memoryview | None:
        for index, tier in enumerate(self._tiers):
            waiting = self._moves.waiting(name, index)
            if waiting is not None:
                return waiting[start : start + length]
            with self._passing_over(index):
                view = tier.get_range(name, start, length)
                if view is not None:
                    return view
        return None

    def _size(self, name: str) -> int | None:
        for index, tier in enumerate(self._tiers):
            waiting = self._moves.waiting(name, index)
            if waiting is not None:
                return waiting.nbytes
            with self._passing_over(index):
                size_bytes = tier.size_bytes(name)
                if size_bytes is not None:
                    return size_bytes
        return None

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        with self._locks.held(name):
            self._moves.drop(name)
            later = {index for index, back in enumerate(self._back) if back}
            taken, errors = self._put([i for i in range(len(self._tiers)) if i not in later], name, buffers)
            if not taken:
                raise StoreWriteError(f"blob {name}: no tier took it ({'; '.join(map(str, errors))})") from errors[0]
            at_once = [i for i in later if not self._moves.write_back(name, taken, i)]
            if at_once:
                taken += self._put(at_once, name, buffers)[0]
            for index in set(range(len(self._tiers))) - later.difference(at_once) - set(taken):
                # It may still have what was there before.
                with self._passing_over(index):
                    self._tiers[index].delete(name)

    def _get_many(self, index: int, names: Sequence[str]) -> list[memoryview | None]:
        """Ask one tier; what waits to be written to it comes before what it has."""
        views: list[memoryview | None] = [self._moves.waiting(name, index) for name in names]
        rest = [i for i, view in enumerate(views) if view is None]
        for i, view in zip(rest, self._tiers[index].get_many([names[i] for i in rest]) if rest else [], strict=True):
            views[i] = view
        return views

    def _put(
        self, indices: Sequence[int], name: str, buffers: Sequence[memoryview]
    ) -> tuple[list[int], list[Exception]]:
        """Put into some tiers, slowest first; returns those that took it, and what the others said."""
        taken: list[int] = []
        errors: list[Exception] = []
        for index in sorted(indices, reverse=True):
            try:
                self._tiers[index].put(name, buffers)
            except (StoreError, OSError) as error:
                self._failed(index, error)
                errors.append(error)
            else:
                taken.append(index)
        return taken, errors

    def _remove(self, name: str) -> bool:
        with self._locks.held(name):
            waited = self._moves.drop(name)
            return any(self._all(lambda tier: tier.delete(name))) or waited

    def _names(self, prefix: str) -> Sequence[str]:
        waiting = {name for name in self._moves.waiting_names() if name.startswith(prefix)}
        return sorted(waiting.union(*self._all(lambda tier: tier.names(prefix))))

    def _touch(self, names: Sequence[str]) -> None:
        for index, tier in enumerate(self._tiers):
            with self._passing_over(index):
                tier.touch(names)

    def _set_aside(self, name: str, reason: str) -> None:
        """Quarantine in every tier that has the bytes which the fastest one gives; a slower one may have better."""
        with self._locks.held(name):
            self._moves.drop(name)
            damaged: memoryview | None = None
            for index, tier in enumerate(self._tiers):
                with self._passing_over(index):
                    view = whole(tier, name)
                    damaged = view if damaged is None else damaged
                    if view is not None and view == damaged:
                        tier.quarantine(name, reason)

    def _usage(self) -> Mapping[str, Usage]:
        self._moves.flush(FLUSH_SECONDS)
        return joint_usage(self._all(lambda tier: Holding(tier, tier.usage(), list(tier.names()))))

    def _close(self) -> None:
        self._moves.close()
        for tier in self._tiers:
            tier.close()

    def _all(self, call: Callable[[BlobStore], T]) -> list[T]:
        """Return what each tier returns; those that fail are left out, unless all do."""
        results: list[T] = []
        errors: list[Exception] = []
        for index, tier in enumerate(self._tiers):
            try:
                results.append(call(tier))
            except (StoreError, OSError) as error:
                self._failed(index, error)
                errors.append(error)
        if not results:
            raise errors[0]
        return results

    @contextmanager
    def _passing_over(self, index: int) -> Iterator[None]:
        """Go on without a tier that fails."""
        try:
            yield
        except (StoreError, OSError) as error:
            self._failed(index, error)

    def _failed(self, index: int, error: Exception) -> None:
        """Note that a tier failed, and say so, but not each time."""
        self._count(failures=1)
        now = monotonic()
        if now - self._warned_at.get(index, -WARN_EVERY_SECONDS) >= WARN_EVERY_SECONDS:
            self._warned_at[index] = now
            _log.warning("tier %d (%s) is passed over: %s", index, self._tiers[index].tier, error)
