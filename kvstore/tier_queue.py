"""Work of a tiered store that nobody waits for: one thread does it in order, within a limit of bytes held."""

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Condition, Thread

MAX_JOBS = 4096
_EPOCHS = 64

_log = logging.getLogger("epic_rag.kvstore")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Something to be done about a blob.

    Attributes:
        name: the blob's name.
        run: does it, and deals with its own errors.
        held_bytes: bytes that wait for it in memory.
        needed: whether closing the queue still does it.
    """

    name: str
    run: Callable[[], None]
    held_bytes: int = 0
    needed: bool = False


class TierQueue:
    """Jobs by key, done one after the other; a later job of the same key takes the place of one that waits."""

    def __init__(self, limit_bytes: int, guard: Callable[[str], AbstractContextManager[object]]) -> None:
        """Make an empty queue; its thread starts with the first job.

        Args:
            limit_bytes: the most that jobs may hold together.
            guard: the lock of a blob's name. A job runs under it, unless it was dropped before it was got.
        """
        self._limit_bytes = limit_bytes
        self._guard = guard
        self._jobs: dict[Hashable, Job] = {}
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False
        self._epochs: dict[int, int] = {}

    def epoch(self, name: str) -> int:
        """Return a number that `drop` changes; see `add`."""
        return self._epochs.get(hash(name) % _EPOCHS, 0)

    def add(self, key: Hashable, job: Job, epoch: int | None = None) -> bool:
        """Add a job; returns False when it is refused.

        Args:
            key: what it is, for example ("promote", name).
            job: the job.
            epoch: refuse it when the blob was dropped since `epoch` gave this number.
        """
        with self._changed:
            replaced = self._jobs.get(key)
            held_bytes = sum(other.held_bytes for other in self._jobs.values() if other is not replaced)
            if self._closed or held_bytes + job.held_bytes > self._limit_bytes or len(self._jobs) >= MAX_JOBS:
                return False
            if epoch is not None and epoch != self.epoch(job.name):
                return False
            self._jobs[key] = job
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="epic-rag-tiers", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def drop(self, name: str) -> None:
        """Forget the jobs of a blob that have not begun."""
        with self._changed:
            place = hash(name) % _EPOCHS
            self._epochs[place] = self._epochs.get(place, 0) + 1
            for key in [key for key, job in self._jobs.items() if job.name == name]:
                del self._jobs[key]
            self._changed.notify_all()

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until no job that is needed is left; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(j.needed for j in self._jobs.values()), timeout_seconds)

    def close(self) -> None:
        """Forget the jobs that are not needed, do the others, and end the thread."""
        with self._changed:
            self._closed = True
            for key in [key for key, job in self._jobs.items() if not job.needed]:
                del self._jobs[key]
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread.is_alive():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                key, job = next(iter(self._jobs.items()))
            with self._guard(job.name):
                # Whoever changes a blob holds its lock and drops its jobs: what is still here is still right.
                if self._jobs.get(key) is job:
                    self._do(job)
            with self._changed:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
                self._changed.notify_all()

    def _do(self, job: Job) -> None:
        try:
            job.run()
        except Exception:  # noqa: BLE001 - the thread goes on with the next job
            _log.exception("blob %s: a job in the background failed", job.name)
