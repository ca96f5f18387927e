"""Blobs that are read piece by piece into memory that is there already."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from epic_rag.kvstore.errors import StoreFormatError


class OpenBlob(Protocol):
    """A blob that is open for reading: the same bytes all along, whatever becomes of its name meanwhile."""

    @property
    def num_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def is_faster_by_two(self) -> bool:
        """Whether two threads that read different bytes of it get done sooner than one."""
        ...

    def read(self, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers, one after the other, with the bytes from `start`.

        Raises:
            StoreFormatError: the blob ends before.
        """
        ...


@runtime_checkable
class OpensBlobs(Protocol):
    """A store that can do so without handing out a copy or a mapping first."""

    def open_blob(self, name: str) -> AbstractContextManager[OpenBlob | None]:
        """Open a blob, or give None where there is none; counts as `get` does."""
        ...


class ViewBlob:
    """Bytes in memory as an open blob."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    @property
    def num_bytes(self) -> int:
        """Their number."""
        return len(self._view)

    @property
    def is_faster_by_two(self) -> bool:
        """False: copying holds Python's lock."""
        return False

    def read(self, start: int, buffers: Sequence[memoryview]) -> None:
        """Copy."""
        for buffer in buffers:
            piece = self._view[start : start + len(buffer)]
            if len(piece) != len(buffer):
                raise StoreFormatError(f"truncated: {len(self._view)} bytes, byte {start + len(buffer)} is missing")
            buffer[:] = piece
            start += len(buffer)
