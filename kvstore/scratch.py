"""Memory that is used again: fresh memory costs a page fault for every few kilobytes, as much as filling it does."""

from collections.abc import Iterator
from contextlib import contextmanager

_KEPT = 4
_KEPT_BYTES = 64 << 20


def fresh(num_bytes: int) -> memoryview:
    """Return memory that, unlike a bytearray's, is not filled with zeros first."""
    import numpy as np

    return np.empty(num_bytes, np.uint8).data


class Scratch:
    """Lends memory, and takes it back; safe for threads."""

    def __init__(self) -> None:
        self._spare: list[memoryview] = []

    @contextmanager
    def lend(self) -> Iterator["Loan"]:
        """Lend memory until the end of the block."""
        loan = Loan(self._spare.pop() if self._spare else memoryview(b""))
        try:
            yield loan
        finally:
            if len(self._spare) < _KEPT and len(loan.memory) <= _KEPT_BYTES:
                self._spare.append(loan.memory)


class Loan:
    """Memory that grows to what is asked for."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory

    def take(self, num_bytes: int) -> memoryview:
        """Return so many bytes, which hold anything; what was taken before is given up."""
        if len(self.memory) < num_bytes:
            self.memory = fresh(num_bytes)
        return self.memory[:num_bytes]
