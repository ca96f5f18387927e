"""A lock for each name, which exists only while somebody holds it or waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class _Entry:
    lock: Lock = field(default_factory=Lock)
    users: int = 0


class NameLocks:
    """Locks by name; work on one name never waits for work on another. Not reentrant."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = Lock()

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the lock of a name."""
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            entry.users += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._entries[name]
