"""Codecs `int8` and `int8+lz4`: one byte a number, with an error.

Keys are scaled per channel and values per token, since keys have a few large channels and values do not (KIVI, Liu et
al., arXiv 2402.02750).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epic_rag.kvstore.codecs_base import Part, tensor_bytes, writable
from epic_rag.kvstore.codecs_compress import Compressor, restore, shrink
from epic_rag.kvstore.errors import StoreWriteError

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 127
_SMALLEST_STEP = 2.0**-126
"""The smallest normal float32: smaller steps lose digits, or become 0 where denormal numbers are flushed."""


class Int8:
    """`key_scales` F32 [H, D], `value_scales` F32 [H, T], then `keys` and `values` I8 [H, T, D]: number = scale * I8.

    A scale is a 127th of the largest magnitude of its channel or token, so no number is off by more than half a scale
    and the rounding to its dtype. NaN and infinity are refused: they would spread over the whole channel or token.
    """

    def __init__(self, compressor: Compressor | None = None) -> None:
        self._compressor = compressor

    @property
    def name(self) -> str:
        """`int8`, with the compressor's name behind a plus."""
        return "int8" if self._compressor is None else f"int8+{self._compressor.name}"

    def parts(self, dtype: str, plane: tuple[int, int, int]) -> tuple[Part, ...]:
        """Return scales and numbers; the dtype is that of the numbers after decoding."""
        num_kv_heads, num_tokens, head_dim = plane
        packed = self._compressor is not None
        return (
            Part("key_scales", "F32", (num_kv_heads, head_dim)),
            Part("value_scales", "F32", (num_kv_heads, num_tokens)),
            Part("keys", "I8", plane, packed),
            Part("values", "I8", plane, packed),
        )

    def encode(self, keys: "Tensor", values: "Tensor") -> list[memoryview]:
        """Scale and round."""
        key_scales, key_items = _quantise(keys, 1)
        value_scales, value_items = _quantise(values, 2)
        items = [tensor_bytes(key_items), tensor_bytes(value_items)]
        if self._compressor is not None:
            items = [shrink(self._compressor, data) for data in items]
        return [tensor_bytes(key_scales), tensor_bytes(value_scales), *items]

    def decode(self, parts: Sequence[memoryview], keys: "Tensor", values: "Tensor") -> None:
        """Multiply, in float32."""
        import torch

        for out, dim, scale_part, item_part in ((keys, 1, parts[0], parts[2]), (values, 2, parts[1], parts[3])):
            plain = item_part if self._compressor is None else restore(self._compressor, item_part, out.numel())
            items = torch.frombuffer(writable(plain), dtype=torch.int8).view(out.shape)
            # A layer may begin at any byte: the scales are moved to where float32 may lie.
            scales = torch.frombuffer(bytearray(scale_part), dtype=torch.float32)
            shape = [1 if axis == dim else size for axis, size in enumerate(out.shape)]
            out.copy_(items * scales.view(shape))

    def require(self) -> None:
        """Needs the compressor's package, if any."""
        if self._compressor is not None:
            self._compressor.require()


def _quantise(numbers: "Tensor", dim: int) -> "tuple[Tensor, Tensor]":
    """Return scales, without `dim`, and int8 numbers [H, T, D]."""
    import torch

    numbers = numbers.float()
    scales = (numbers.abs().amax(dim, keepdim=True) / _LARGEST).clamp_min(_SMALLEST_STEP)
    if not bool(scales.isfinite().all()):
        raise StoreWriteError(
            "codec 'int8' cannot hold NaN or infinity, which this KV has: use codec 'none' or 'lz4', or compute the "
            "model in bfloat16 or float32"
        )
    return scales.squeeze(dim), (numbers / scales).round_().to(torch.int8)
