"""Bytes by name: the contract that every tier of the KV store keeps.

A tier implements the underscored hooks; names, closing, counting and the asyncio face are the same for all and stand
here. `epic_rag.kvstore.conformance` is the suite that every tier passes.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Self

from epic_rag.kvstore.asyncface import AsyncFace, Buffer, Data
from epic_rag.kvstore.errors import StoreClosedError

RECORD_PREFIX = "profile-"
"""Blobs of these names are records: pinned, never replaced."""

_NAME = re.compile(r"[0-9a-z-]{1,160}")


def is_name(text: str) -> bool:
    """Return whether a blob may have this name: 1 to 160 of `0-9 a-z -`."""
    return _NAME.fullmatch(text) is not None


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


@dataclass(frozen=True, slots=True)
class TierStats:
    """A tier in numbers. Entries and bytes are what it holds; the rest was counted since this object opened it.

    Attributes:
        tier: "memory", "disk".
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
        self._counts = dict.fromkeys(("hits", "misses", "puts", "replaced", "corrupt", "read", "written"), 0)
        self._counts_lock = Lock()

    @property
    @abstractmethod
    def tier(self) -> str:
        """The tier's name in reports: "memory", "disk"."""

    def get(self, name: str) -> memoryview | None:
        """Return the blob's bytes, or None; counts as a use of the blob."""
        self._check(name)
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

    def get_range(self, name: str, start: int, length: int) -> memoryview | None:
        """Return bytes `start` to `start + length`, fewer where the blob ends before; None when there is no blob.

        Neither a use nor a hit: who reads a blob in parts calls `touch` once.

        Raises:
            ValueError: start or length below 0.
        """
        self._check(name)
        if start < 0 or length < 0:
            raise ValueError(f"expected start and length of at least 0, got {start} and {length}")
        return self._read_range(name, start, length)

    def put(self, name: str, data: Data) -> None:
        """Store bytes under a name, in place of what was there; readers see the old bytes or the new, never a mixture.

        Raises:
            StoreWriteError: no room, read-only, or larger than the budget; what was there stays or is gone, whole.
        """
        self._check(name)
        buffers = [memoryview(part).cast("B") for part in ([data] if isinstance(data, Buffer) else data)]
        size_bytes = sum(part.nbytes for part in buffers)
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

    def stats(self) -> TierStats:
        """Return the tier in numbers."""
        usage = self.usage().values()
        with self._counts_lock:
            counts = dict(self._counts)
        return TierStats(
            tier=self.tier,
            entries=sum(use.entries for use in usage),
            bytes=sum(use.bytes for use in usage),
            budget_bytes=self.budget_bytes,
            hits=counts["hits"],
            misses=counts["misses"],
            puts=counts["puts"],
            replaced=counts["replaced"],
            corrupt=counts["corrupt"],
            read_bytes=counts["read"],
            written_bytes=counts["written"],
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

    def _count(self, **amounts: int) -> None:
        with self._counts_lock:
            for what, amount in amounts.items():
                self._counts[what] += amount

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
