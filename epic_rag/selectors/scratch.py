"""Room for a pass over placed KV that leaves it as it is."""

from __future__ import annotations

from torch import Tensor

from epic_rag.kv_cache import KVCache


class ScratchCache(KVCache):
    """Looks like a copy of a cache, with the room of one layer.

    Every layer stands in the same memory. A forward goes through the layers in order and reads a layer only after it
    has written to it: there the placed KV is copied in first, and the new rows go over it.
    """

    def __init__(self, placed: KVCache, capacity: int) -> None:
        """Reserve room for `capacity` tokens over what `placed` holds; that is never written."""
        num_layers, num_kv_heads, _, head_dim = placed.keys.shape
        super().__init__((1, num_kv_heads, capacity, head_dim), placed.keys.dtype, placed.keys.device)
        self.keys = self.keys.expand(num_layers, -1, -1, -1)
        self.values = self.values.expand(num_layers, -1, -1, -1)
        self._placed = placed

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Bring in the layer's placed KV, and put `keys` and `values` (`[H, Q, D]`) at `slots` (`[Q]`)."""
        used = min(self._placed.length, self.capacity)
        self.keys[layer, :, :used] = self._placed.keys[layer, :, :used]
        self.values[layer, :, :used] = self._placed.values[layer, :, :used]
        super().write(layer, slots, keys, values)
