"""Bytes by name: the contract that every tier of the KV store keeps.

A tier implements the underscored hooks; names, closing, counting and the asyncio face are the same for all and stand
here. `epic_rag.kvstore.conformance` is the suite that every tier passes.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Self

from epic_rag.kvstore.asyncface import AsyncFace, Buffer, Data
from epic_rag.kvstore.errors import StoreClosedError, StoreError
from epic_rag.kvstore.prefetch import Prefetch, finished
from epic_rag.kvstore.tierstats import BlobNote, Found, TierStats, Usage

__all__ = ["RECORD_PREFIX", "BlobNote", "BlobStore", "Found", "TierStats", "Usage", "as_buffers", "is_name"]

RECORD_PREFIX = "profile-"
"""Blobs of these names are records: pinned, never replaced."""

_COUNTED = ("hits", "misses", "puts", "replaced", "corrupt", "read", "written", "failures")
_NAME = re.compile(r"[0-9a-z-]{1,160}")


def is_name(text: str) -> bool:
    """Return whether a blob may have this name: 1 to 160 of `0-9 a-z -`."""
    return _NAME.fullmatch(text) is not None


def as_buffers(data: Data) -> tuple[list[memoryview], int]:
    """Return data as byte views to be written one after the other, and their size in bytes together."""
    buffers = [memoryview(part).cast("B") for part in ([data] if isinstance(data, Buffer) else data)]
    return buffers, sum(part.nbytes for part in buffers)


class BlobStore(AsyncFace, ABC):
    """Named bytes that live in one tier; safe for threads.

    Names are 1 to 160 of `0-9 a-z -`. What `get` returns is never changed by the store afterwards, and stays readable
    after its blob was replaced, deleted, or the store was closed.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        if budget_bytes is not None and budget_bytes < 1:
            raise ValueError(f"budget_bytes: expected at least 1, or None for no limit, got {budget_bytes}")
        self.budget_bytes = budget_bytes
        self._closed = False
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._seconds = {"read": 0.0, "write": 0.0}
        self._counts_lock = Lock()

    @property
    @abstractmethod
    def tier(self) -> str:
        """The tier's name in reports: "memory", "disk"."""

    @property
    def remote(self) -> bool:
        """Whether reading a blob once more costs as much as the first time; False where the machine itself has it."""
        return False

    def get(self, name: str) -> memoryview | None:
        """Return the blob's bytes, or None; counts as a use of the blob."""
        self._check(name)
        with self._timed("read"):
            view = self._read(name)
        if view is None:
            self._count(misses=1)
            return None
        self._count(hits=1, read=view.nbytes)
        self._touch([name])
        return view

    def get_many(self, names: Sequence[str]) -> list[memoryview | None]:
        """Return `get` of each name; a tier behind a network asks for all of them at once."""
        return [self.get(name) for name in names]

    def find(self, name: str) -> Found | None:
        """Return what `get` returns, and which tier had it."""
        return self.find_many([name])[0]

    def find_many(self, names: Sequence[str]) -> list[Found | None]:
        """Return what `get_many` returns, and which tier had each."""
        return [None if view is None else Found(view, self.tier) for view in self.get_many(names)]

    def prefetch(self, names: Sequence[str]) -> Prefetch:
        """Start loading blobs to where they are read fastest, in the background; errors reach nobody."""
        self._check(*names)
        return finished()

    def get_range(self, name: str, start: int, length: int) -> memoryview | None:
        """Return bytes `start` to `start + length`, fewer where the blob ends before; None when there is no blob.

        Neither a use nor a hit: who reads a blob in parts calls `touch` once.

        Raises:
            ValueError: start or length below 0.
        """
        self._check_range(name, start, length)
        return self._read_range(name, start, length)

    def put(self, name: str, data: Data) -> None:
        """Store bytes under a name, in place of what was there; readers see the old bytes or the new, never a mixture.

        Raises:
            StoreWriteError: no room, read-only, or larger than the budget; what was there stays or is gone, whole.
        """
        self._check(name)
        buffers, size_bytes = as_buffers(data)
        with self._timed("write"):
            self._write(name, buffers, size_bytes)
        self._count(puts=1, written=size_bytes)

    def delete(self, name: str) -> bool:
        """Remove a blob; returns whether there was one."""
        self._check(name)
        return self._remove(name)

    def contains(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether it is stored; not a use."""
        self._check(*names)
        return [self._size(name) is not None for name in names]

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that start with `prefix`, sorted, as they were when the call was made."""
        self._check(*([prefix] if prefix else []))
        return iter(self._names(prefix))

    def size_bytes(self, name: str) -> int | None:
        """Return a blob's size, or None when there is none."""
        self._check(name)
        return self._size(name)

    def touch(self, names: Sequence[str]) -> None:
        """Count a use of each of these blobs, as `get` does; unknown names are ignored."""
        self._check(*names)
        self._touch(names)

    def quarantine(self, name: str, reason: str) -> None:
        """Take a damaged blob out of use; a tier that can keeps its bytes aside. Never raises for I/O."""
        self._check(name)
        self._count(corrupt=1)
        self._set_aside(name, reason)

    def usage(self) -> Mapping[str, Usage]:
        """Return what each profile takes, by profile digest; "" holds records and other bytes."""
        self._check()
        return self._usage()

    def by_rank(self) -> Sequence[str]:
        """Return the names that may give way to others, in the order in which they would.

        Raises:
            StoreError: the store keeps no such order of its own.
        """
        self._check()
        raise StoreError(f"the {self.tier} store keeps no order of use: it cannot be cut to a size from here")

    def each_tier(self) -> Sequence["BlobStore"]:
        """Return the stores that this one is made of, fastest first: itself, where it is one tier."""
        return (self,)

    def tiers(self) -> tuple[TierStats, ...]:
        """Return each tier in numbers, fastest first."""
        return (self.stats(),)

    def stats(self) -> TierStats:
        """Return the store in numbers."""
        return self.numbers(self.usage())

    def numbers(self, usage: Mapping[str, Usage]) -> TierStats:
        """Return what was counted, with what the store is said to hold; `stats` without asking the tier."""
        with self._counts_lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        return TierStats(
            tier=self.tier,
            entries=sum(use.entries for use in usage.values()),
            bytes=sum(use.bytes for use in usage.values()),
            budget_bytes=self.budget_bytes,
            hits=counts["hits"],
            misses=counts["misses"],
            puts=counts["puts"],
            replaced=counts["replaced"],
            corrupt=counts["corrupt"],
            read_bytes=counts["read"],
            written_bytes=counts["written"],
            failures=counts["failures"],
            read_seconds=seconds["read"],
            write_seconds=seconds["write"],
        )

    def reconcile(self) -> None:
        """Make the bookkeeping agree with what is really stored; does nothing where the two cannot differ."""
        self._check()

    def close(self) -> None:
        """Give up the store's resources; a second call does nothing, any other use raises StoreClosedError."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check(self, *names: str) -> None:
        if self._closed:
            raise StoreClosedError(f"the {self.tier} store was closed: open it again")
        for name in names:
            if not is_name(name):
                raise ValueError(f"blob name {name!r}: expected 1 to 160 of 0-9, a-z and '-'")

    def _check_range(self, name: str, start: int, length: int) -> None:
        self._check(name)
        if start < 0 or length < 0:
            raise ValueError(f"expected start and length of at least 0, got {start} and {length}")

    def _count(self, **amounts: int) -> None:
        with self._counts_lock:
            for what, amount in amounts.items():
                self._counts[what] += amount

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - began
            with self._counts_lock:
                self._seconds[what] += seconds

    @abstractmethod
    def _read(self, name: str) -> memoryview | None: ...

    def _read_range(self, name: str, start: int, length: int) -> memoryview | None:
        view = self._read(name)
        return None if view is None else view[start : start + length]

    @abstractmethod
    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None: ...

    @abstractmethod
    def _remove(self, name: str) -> bool: ...

    @abstractmethod
    def _size(self, name: str) -> int | None: ...

    @abstractmethod
    def _names(self, prefix: str) -> Sequence[str]: ...

    @abstractmethod
    def _touch(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    def _set_aside(self, name: str, reason: str) -> None: ...

    @abstractmethod
    def _usage(self) -> Mapping[str, Usage]: ...

    def _close(self) -> None: ...
