"""The KV of one prompt while it is linked and decoded: preallocated slots, written by scatter."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Rotated keys and values of up to `capacity` tokens, one slot each.

    While a prompt is linked, slot and position are the same. After eviction the slots close up and positions stay, so
    the next token's position is kept apart from the number of slots in use.

    Attributes:
        keys: `[L, H, capacity, D]`, rotated to the tokens' positions.
        values: `[L, H, capacity, D]`.
        length: slots in use (N).
        next_position: absolute position of the next token.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Reserve room for `shape` = (L, H, capacity, D)."""
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0
        self.next_position = 0

    @property
    def capacity(self) -> int:
        """Slots there are."""
        return self.keys.shape[2]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put `keys` and `values` (`[H, Q, D]`) of one layer at `slots` (`[Q]` int64)."""
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)

    def advance(self, num_slots: int) -> None:
        """Say that slots `0 … num_slots - 1` are in use and hold positions in order."""
        self.length = num_slots
        self.next_position = max(self.next_position, num_slots)

    def keep(self, kept: Tensor) -> None:
        """Keep only the slots `kept` (`[B]` int64, ascending); the others' room is free again."""
        count = kept.numel()
        for layer in range(self.keys.shape[0]):  # a layer at a time: the gathered copy stays small
            self.keys[layer, :, :count] = self.keys[layer, :, kept]
            self.values[layer, :, :count] = self.values[layer, :, kept]
        self.length = count
