"""Codec `none`: the tensors as they are, so that a mapped file is the KV."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epic_rag.kvstore.codecs_base import Part, tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor


class Plain:
    """Keys [H, T, D], then values [H, T, D], in their own dtype."""

    name = "none"

    def parts(self, dtype: str, plane: tuple[int, int, int]) -> tuple[Part, ...]:
        """Return keys and values."""
        return Part("keys", dtype, plane), Part("values", dtype, plane)

    def encode(self, keys: "Tensor", values: "Tensor") -> list[memoryview]:
        """Return the tensors' own memory where they are contiguous."""
        return [tensor_bytes(keys), tensor_bytes(values)]

    def decode(self, parts: Sequence[memoryview], keys: "Tensor", values: "Tensor") -> None:
        """Copy."""
        import numpy as np
        import torch

        for data, out in zip(parts, (keys, values), strict=True):
            target = out.view(torch.uint8).numpy()
            target[...] = np.frombuffer(data, np.uint8).reshape(target.shape)

    def require(self) -> None:
        """Needs nothing."""
