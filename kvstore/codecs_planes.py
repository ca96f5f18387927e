"""Codecs `lz4` and `zstd`: lossless, by byte planes.

Sign and exponent of KV are much alike from number to number, the mantissa is noise. The byte that holds the first goes
through a compressor, the others are stored as they are; compressing whole bfloat16 numbers would gain about 1%.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epic_rag.kvstore.codecs_base import ITEM_BYTES, Part, tensor_bytes
from epic_rag.kvstore.codecs_compress import Compressor, restore, shrink

if TYPE_CHECKING:
    from torch import Tensor


class BytePlanes:
    """`high` [2, H, T, D], packed: the most significant byte of each key, then of each value.

    `low` [2, H, T, D, item size - 1], as it is: the other bytes, least significant first.
    """

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor

    @property
    def name(self) -> str:
        """The compressor's name."""
        return self._compressor.name

    def parts(self, dtype: str, plane: tuple[int, int, int]) -> tuple[Part, ...]:
        """Return the two planes."""
        both = (2, *plane)
        return Part("high", "U8", both, packed=True), Part("low", "U8", (*both, ITEM_BYTES[dtype] - 1))

    def encode(self, keys: "Tensor", values: "Tensor") -> list[memoryview]:
        """Split and compress."""
        import torch

        items = torch.stack([_bytes_of(keys.contiguous()), _bytes_of(values.contiguous())])
        high, low = tensor_bytes(items[..., -1]), tensor_bytes(items[..., :-1])
        return [shrink(self._compressor, high), low]

    def decode(self, parts: Sequence[memoryview], keys: "Tensor", values: "Tensor") -> None:
        """Decompress and join."""
        import numpy as np

        num_low_bytes = keys.element_size() - 1
        high = np.frombuffer(restore(self._compressor, parts[0], 2 * keys.numel()), np.uint8).reshape(2, *keys.shape)
        low = np.frombuffer(parts[1], np.uint8).reshape(2, *keys.shape, num_low_bytes)
        for index, out in enumerate((keys, values)):
            items = _bytes_of(out).numpy()
            items[..., -1] = high[index]
            items[..., :-1] = low[index]

    def require(self) -> None:
        """Needs the compressor's package."""
        self._compressor.require()


def _bytes_of(tensor: "Tensor") -> "Tensor":
    """View numbers [H, T, D] as their bytes [H, T, D, item size], least significant first."""
    import torch

    return tensor.view(torch.uint8).view(*tensor.shape, tensor.element_size())
