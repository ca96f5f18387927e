"""Private file mappings that hold no file descriptor.

Before Python 3.13 the mmap module keeps a descriptor open for each mapping, and a process may have no more than 1,024
of them by default; KV that is in use would soon take them all. The system call itself needs none.
"""

import ctypes
import mmap
import os
import weakref
from functools import cache


def map_private(descriptor: int, size_bytes: int) -> memoryview:
    """Map the first bytes of an open file.

    Writing into the mapping changes neither the file nor another mapping. It is given back when the last view of it is
    gone, and stays valid after the file was closed, replaced or removed; cutting the file short in place would kill
    the process at the next access.

    Args:
        descriptor: the file; may be closed afterwards.
        size_bytes: at least 1, at most the file's size.

    Raises:
        OSError: the system refused.
    """
    import numpy as np

    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
    address = _libc().mmap(None, size_bytes, protection, flags, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_ubyte * size_bytes).from_address(address)
    # Not at exit: threads may still read then, and the system takes the memory back anyway.
    weakref.finalize(memory, _libc().munmap, address, size_bytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8).data


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
