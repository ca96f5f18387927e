"""The KV of one prompt while it is linked and decoded: preallocated slots, written by scatter."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Rotated keys and values of up to `capacity` tokens, one slot each.

    While a prompt is linked, slot and position are the same. After eviction the slots close up and positions stay, so
    the next token's position is kept apart from the number of slots in use. Which token a slot holds may then differ
    from layer to layer and head to head; how many slots are in use does not.

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
        self._redirected: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Slots there are."""
        return self.keys.shape[2]

    @property
    def _first_rows(self) -> Tensor:
        """`[H, 1]`: where each head's slots begin when those of a layer are counted through."""
        return torch.arange(self.keys.shape[1], device=self.keys.device)[:, None] * self.capacity

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put a layer's `keys` and `values` (`[H, Q, D]`) at `slots`, int64: `[Q]`, or `[H, Q]` where heads differ."""
        if self._redirected is not None:
            slots = self._redirected[layer, :, None]
        if slots.dim() == 1:
            self.keys[layer].index_copy_(1, slots, keys)
            self.values[layer].index_copy_(1, slots, values)
            return
        rows = (slots + self._first_rows).flatten()
        for tensor, new in ((self.keys, keys), (self.values, values)):  # ten times as fast as `scatter_` for one row
            tensor[layer].view(-1, tensor.shape[-1]).index_copy_(0, rows, new.flatten(0, 1))

    def redirect(self, slots: Tensor) -> None:
        """Let the next row overwrite `slots` (`[L, H]` int64), whatever slot `write` is told; until `advance`."""
        self._redirected = slots

    def advance(self, num_slots: int) -> None:
        """Say that slots `0 … num_slots - 1` are in use and hold positions in order."""
        self.length = num_slots
        self.next_position = max(self.next_position, num_slots)
        self._redirected = None

    def trim(self, capacity: int) -> None:
        """Give back the memory of all but `capacity` slots, at least those in use."""
        capacity = max(capacity, self.length)
        if capacity < self.capacity:
            self.keys = self.keys[:, :, :capacity].clone()
            self.values = self.values[:, :, :capacity].clone()

    def keep(self, kept: Tensor) -> None:
        """Keep only some slots; the others' room is free again.

        Args:
            kept: int64, ascending: `[B]`, the same everywhere, or `[L | 1, H | 1, B]`.
        """
        num_layers, num_heads, _, head_dim = self.keys.shape
        count = kept.shape[-1]
        rows = (kept + self._first_rows).expand(num_layers, num_heads, count).flatten(1)
        for layer in range(num_layers):  # a layer at a time: the gathered copy stays small
            for tensor in (self.keys[layer], self.values[layer]):
                tensor[:, :count] = tensor.flatten(0, 1).index_select(0, rows[layer]).view(num_heads, count, head_dim)
        self.length = count
