"""A load that runs in the background while its caller does something else."""

from threading import Event


class Prefetch:
    """Blobs on their way into the fastest tier; what `prefetch` returns.

    Nothing depends on it: who does not wait, or cancels, only reads from a slower tier.
    """

    def __init__(self) -> None:
        self._done = Event()
        self._cancelled = Event()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to load, for whatever reason."""
        return self._done.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Load no more of it; what is being read at this moment is finished."""
        self._cancelled.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it is done; returns whether it is."""
        return self._done.wait(timeout_seconds)

    def finish(self) -> None:
        """Say that it is done; called by the store that loads."""
        self._done.set()


def finished() -> Prefetch:
    """Return a load that has nothing left to do."""
    done = Prefetch()
    done.finish()
    return done
