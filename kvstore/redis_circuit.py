"""The circuit breaker of a tier behind a network: after one failure nobody waits for it until it answers again."""

import logging
from collections.abc import Callable
from threading import Event, Lock, Thread

from epic_rag.kvstore.errors import StoreUnavailableError

PAUSE_SECONDS = 2.0
"""How long to wait before each probe."""

_log = logging.getLogger("epic_rag.kvstore")


class Circuit:
    """Closed while the server answers; one failure opens it, and a probe that succeeds closes it again.

    The half-open state is a thread of its own, which lives only while the circuit is open: a probe that runs into the
    same timeout once more delays no caller.
    """

    def __init__(self, shown: str, probe: Callable[[], None]) -> None:
        """Start closed.

        Args:
            shown: the server's address, without secrets.
            probe: asks the server; raises anything while it does not answer.
        """
        self._shown = shown
        self._probe = probe
        self._reason: str | None = None
        self._opened = 0
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server counts as dead."""
        return self._reason is not None

    @property
    def times_opened(self) -> int:
        """How often it opened so far."""
        return self._opened

    def check(self) -> None:
        """Raise StoreUnavailableError while it is open."""
        if self._reason is not None:
            self._start_probing()
            raise self._error(self._reason)

    def open(self, error: Exception) -> StoreUnavailableError:
        """Note a failure; returns it in words."""
        # Errors of libraries may be empty, or mean little without their name.
        reason = str(error) if isinstance(error, StoreUnavailableError) else f"{type(error).__name__}: {error}"
        with self._lock:
            first, self._reason = self._reason is None, reason
            self._opened += first
        if first:
            _log.warning("%s; going on without it, and looking every %g seconds", self._error(reason), PAUSE_SECONDS)
            self._start_probing()
        return self._error(reason)

    def stop(self) -> None:
        """Probe no more."""
        self._stop.set()

    def _start_probing(self) -> None:
        with self._lock:
            # A forked child inherits the state of the circuit but not the thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._watch, name="epic-rag-redis-probe", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            try:
                self._probe()
            except Exception as error:  # noqa: BLE001 - whatever it is, the server is not back
                _log.debug("%s: still away (%s)", self._shown, error)
                continue
            with self._lock:
                self._reason = self._thread = None
            _log.warning("%s answers again", self._shown)
            return

    def _error(self, reason: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._shown} cannot be used ({reason}): check that it runs, and the address, password and network"
        )
