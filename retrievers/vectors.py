"""The vectors of passages on disk: three arrays of one length, checked when they are mapped."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from epic_rag.retrievers.embedder import Matrix

_KEY_BYTES = 16
_FILES = ("ids.npy", "keys.npy", "vectors.npy")


def text_key(text: str) -> bytes:
    """Digest of what is embedded, so that a passage that only moved keeps its vector; hexadecimal, 32 bytes."""
    return blake2b(text.encode(), digest_size=_KEY_BYTES).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of P passages.

    Attributes:
        ids: Passage ids as ASCII bytes, `[P]`, by source and position.
        keys: `text_key` of each passage, `[P]`.
        matrix: Unit vectors, `[P, D]`; D is 0 where there is no passage.
    """

    ids: npt.NDArray[np.bytes_]
    keys: npt.NDArray[np.bytes_]
    matrix: Matrix

    @classmethod
    def empty(cls) -> Self:
        """The vectors of no passage."""
        return cls(np.array([], dtype="S64"), np.array([], dtype="S32"), np.zeros((0, 0), dtype=np.float32))

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, int | str]) -> Self:
        """Map what `save` wrote.

        Raises:
            OSError: A file is missing or unreadable.
            ValueError: A file is damaged.
        """
        arrays = [np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in _FILES]
        found = cls(*arrays)
        if len({len(array) for array in arrays}) != 1 or found.matrix.ndim != 2 or found.matrix.dtype != np.float32:
            raise ValueError(f"{folder} holds arrays of shapes {[array.shape for array in arrays]}")
        if found.checksums() != {name: manifest.get(name) for name in _FILES}:
            raise ValueError(f"{folder} holds other bytes than were written")
        return found

    def save(self, folder: Path) -> None:
        """Write the arrays into an existing folder."""
        for name, array in zip(_FILES, (self.ids, self.keys, self.matrix), strict=True):
            np.save(folder / name, array, allow_pickle=False)

    def checksums(self) -> dict[str, int | str]:
        """CRC-32 of each array's bytes: every search reads them all anyway."""
        arrays = (self.ids, self.keys, self.matrix)
        return {name: zlib.crc32(_bytes(array)) for name, array in zip(_FILES, arrays, strict=True)}


def _bytes(array: npt.NDArray[np.generic]) -> memoryview:
    """The array's own memory; not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
