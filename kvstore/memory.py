"""The memory tier: blobs in this process, gone with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import ParamSpec, TypeVar

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobNote, BlobStore, Usage
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.kvstore.header import describe
from epic_rag.kvstore.replacement import Use, make_replacement

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Entry:
    data: bytes
    note: BlobNote
    uses: int = 0
    last_use: int = 0
    rank: float = 0.0


class MemoryStore(BlobStore):
    """Blobs in a dict, under a byte budget.

    `get` returns a read-only view of the stored bytes, so that no reader can change what the next one sees.
    """

    def __init__(self, budget_bytes: int | None = None, replacement: str = "lru") -> None:
        """Make an empty store.

        Args:
            budget_bytes: the most it may hold; None for no limit.
            replacement: "lru", "lfu" or "gdsf".

        Raises:
            ValueError: a budget below 1, or an unknown replacement.
        """
        super().__init__(budget_bytes)
        self._policy = make_replacement(replacement)
        self._entries: dict[str, _Entry] = {}
        self._lock = Lock()
        self._bytes = 0
        self._clock = 0
        self._floor = 0.0

    @property
    def tier(self) -> str:
        """The tier's name, "memory"."""
        return "memory"

    def by_rank(self) -> Sequence[str]:
        """Return the names that may give way to others, in the order in which they would."""
        self._check()
        with self._lock:
            return [name for _, _, name in self._ranked()]

    def _ranked(self) -> list[tuple[float, int, str]]:
        return sorted((e.rank, e.last_use, n) for n, e in self._entries.items() if not _pinned(n))

    def _read(self, name: str) -> memoryview | None:
        with self._lock:
            entry = self._entries.get(name)
        return None if entry is None else memoryview(entry.data)

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        entry = _Entry(b"".join(buffers), describe(buffers[0]) if buffers else BlobNote())
        with self._lock:
            victims = self._victims(name, size_bytes)
            for victim in victims:
                self._floor = max(self._floor, self._entries[victim].rank)
                self._discard(victim)
            self._discard(name)
            self._entries[name] = entry
            self._bytes += size_bytes
            self._use(entry)
        self._count(replaced=len(victims))

    def _victims(self, name: str, size_bytes: int) -> list[str]:
        """Choose who gives way to `size_bytes` under `name`; changes nothing, so that a refusal loses nothing."""
        if self.budget_bytes is None:
            return []
        old = self._entries.get(name)
        excess = self._bytes - (len(old.data) if old else 0) + size_bytes - self.budget_bytes
        if excess <= 0:
            return []
        victims = []
        for _, _, victim in self._ranked():
            if excess <= 0:
                break
            if victim == name:
                continue
            victims.append(victim)
            excess -= len(self._entries[victim].data)
        if excess > 0:
            raise StoreWriteError(
                f"memory store: {name} has {size_bytes} bytes and no room under the budget of {self.budget_bytes} "
                "bytes: raise the budget"
            )
        return victims

    def _use(self, entry: _Entry) -> None:
        self._clock += 1
        entry.uses += 1
        entry.last_use = self._clock
        use = Use(entry.last_use, entry.uses, len(entry.data), entry.note.cost_seconds, self._floor)
        entry.rank = self._policy.rank(use)

    def _discard(self, name: str) -> bool:
        entry = self._entries.pop(name, None)
        self._bytes -= len(entry.data) if entry else 0
        return entry is not None

    def _remove(self, name: str) -> bool:
        with self._lock:
            return self._discard(name)

    def _size(self, name: str) -> int | None:
        with self._lock:
            entry = self._entries.get(name)
        return None if entry is None else len(entry.data)

    def _names(self, prefix: str) -> Sequence[str]:
        with self._lock:
            return sorted(name for name in self._entries if name.startswith(prefix))

    def _touch(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                if name in self._entries:
                    self._use(self._entries[name])

    def _set_aside(self, name: str, reason: str) -> None:
        self._remove(name)

    def _usage(self) -> Mapping[str, Usage]:
        usage: dict[str, Usage] = {}
        with self._lock:
            for entry in self._entries.values():
                sofar = usage.get(entry.note.profile, Usage(0, 0, 0))
                usage[entry.note.profile] = Usage(
                    sofar.entries + 1, sofar.bytes + len(entry.data), sofar.tokens + entry.note.tokens
                )
        return usage

    def _close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    async def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return call(*args, **kwargs)


def _pinned(name: str) -> bool:
    return name.startswith(RECORD_PREFIX)
