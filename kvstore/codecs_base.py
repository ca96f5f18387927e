"""What a codec is: the way from a layer's tensors to the bytes that are stored, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I8": 1, "U8": 1}
"""Bytes of one item, by safetensors dtype."""

KV_DTYPES = ("BF16", "F16", "F32")
"""The dtypes that keys and values may have."""

MAX_RATIO = 256
"""No layer decodes to more than so many times its stored bytes: what a forged header can ask for stays in bounds. lz4
cannot exceed 255; codecs that could store a good part of each layer as it is."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a stored layer; it stands in the blob as `layer.<i>.<name>`.

    Attributes:
        name: its name.
        dtype: safetensors dtype of its items.
        shape: its shape.
        packed: a compressor went over it, so it is stored as U8 [n]; n equal to `num_bytes` means that compressing did
            not pay, and the bytes stand as they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packed: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes before the compressor."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Codec(Protocol):
    """Turns one layer into parts and back. Stateless; safe for threads."""

    @property
    def name(self) -> str:
        """The name in headers and addresses."""
        ...

    def parts(self, dtype: str, plane: tuple[int, int, int]) -> tuple[Part, ...]:
        """Return what a layer consists of, in the order of the bytes.

        Args:
            dtype: safetensors dtype of keys and values.
            plane: H, T, D.
        """
        ...

    def encode(self, keys: "Tensor", values: "Tensor") -> list[memoryview]:
        """Return the bytes of each part.

        Args:
            keys: [H, T, D], on the CPU.
            values: the same.

        Raises:
            StoreWriteError: this codec cannot hold these numbers.
            StoreVersionError: the package it needs is not installed.
        """
        ...

    def decode(self, parts: Sequence[memoryview], keys: "Tensor", values: "Tensor") -> None:
        """Fill keys and values [H, T, D] from the bytes of each part.

        Args:
            parts: as `parts` lists them, of these lengths.
            keys: on the CPU; the items of the last dimension lie side by side.
            values: the same.

        Raises:
            StoreFormatError: bytes that this codec never wrote.
            StoreVersionError: the package it needs is not installed.
        """
        ...

    def require(self) -> None:
        """Check that the packages it needs are installed.

        Raises:
            StoreVersionError: says what to install.
        """
        ...


def tensor_bytes(tensor: "Tensor") -> memoryview:
    """Return a tensor's bytes: its own memory when it is contiguous and on the CPU, else a copy."""
    import torch

    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def writable(data: memoryview) -> memoryview:
    """Return the bytes themselves where they may be written, else a copy: torch has no read-only tensors."""
    import torch

    if not data.readonly:
        return data
    # torch reuses freed memory of this size; a bytearray would take every page anew, at a tenth of the speed.
    copy = torch.empty(len(data), dtype=torch.uint8).numpy().data
    copy[:] = data
    return copy
