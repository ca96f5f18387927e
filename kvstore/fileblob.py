"""A file of the disk tier that is read straight into memory that is there already.

Beside a mapping this spares a page fault for every few pages, and one copy.
"""

import os
from collections.abc import Sequence

from epic_rag.kvstore.errors import StoreFormatError

_MOST_BUFFERS = 1024
"""Buffers that one system call takes (IOV_MAX)."""


class FileBlob:
    """An open file as an open blob; whoever opened it closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._num_bytes = os.fstat(descriptor).st_size

    @property
    def num_bytes(self) -> int:
        """The file's size when it was opened."""
        return self._num_bytes

    @property
    def is_faster_by_two(self) -> bool:
        """True: the system copies, and one thread alone does not get what the memory can give."""
        return True

    def read(self, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers; a file that was cut short in place, or a bad block, is a flaw of the blob."""
        for first in range(0, len(buffers), _MOST_BUFFERS):
            some = buffers[first : first + _MOST_BUFFERS]
            wanted = sum(map(len, some))
            try:
                got = os.preadv(self._descriptor, some, start)
            except OSError as error:
                raise StoreFormatError(f"cannot be read ({error.strerror})") from error
            if got != wanted:
                raise StoreFormatError(f"truncated: {got} bytes from byte {start}, expected {wanted}")
            start += wanted
