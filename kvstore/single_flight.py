"""One at a time makes the same thing; the others wait and share it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, get_ident
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    pilot: int
    landed: Event = field(default_factory=Event)
    result: list[T] = field(default_factory=list)
    waiting: int = 0


class SingleFlight(Generic[T]):
    """Runs what is asked for under the same key at most once at a time in this process; safe for threads.

    For what is costly to make and the same for all, such as the KV of a chunk. Nothing is kept: who asks after it was
    made looks into the store first.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._lock = Lock()

    def run(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returns, or what another thread's `make` for the same key returned meanwhile.

        An error reaches only the thread whose `make` raised it; one of those that waited then makes it itself. A
        `make` that asks for its own key again runs at once.
        """
        while True:
            with self._lock:
                flight = self._flights.get(key)
                mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight(get_ident())
                elif flight.pilot != get_ident():
                    flight.waiting += 1
            if mine:
                return self._fly(key, flight, make)
            if flight.pilot == get_ident():
                return make()
            flight.landed.wait()
            if flight.result:
                return flight.result[0]

    def waiting(self, key: str) -> int:
        """Return how many threads wait for what is being made under this key."""
        with self._lock:
            flight = self._flights.get(key)
            return 0 if flight is None else flight.waiting

    def _fly(self, key: str, flight: _Flight[T], make: Callable[[], T]) -> T:
        try:
            result = make()
            flight.result.append(result)
            return result
        finally:
            with self._lock:
                del self._flights[key]
            flight.landed.set()
