"""Attention statistics of the slots of one prompt, kept in step with its KV cache."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from epic_rag.evict.view import SlotView, mean_of, std_of
from epic_rag.kv_cache import KVCache

Granularity = Literal["layer", "head"]
CHUNK_SINK_TOKENS = 4
"""First tokens of a chunk whose stored statistics are not taken at their word; as many as StreamingLLM found to act as
sinks (arXiv 2309.17453)."""


class SlotScores:
    """What every slot received, per layer and KV head: a score sink that policies read.

    Everything is summed in fp32: squares of probabilities below 1.7e-4 vanish in half precision, and variances turn
    negative. Counts are exact up to 2**24 rows. Slots from `length` on hold zeros.

    Attributes:
        start: first slot of interest to whoever reports scores: all are.
        sums: `[L, H, capacity]` fp32, probabilities received.
        squares: `[L, H, capacity]` fp32, their squares.
        counts: `[L, H, capacity]` fp32, rows that could see the slot.
        last: `[L, H, capacity]` fp32, what the latest row gave.
        positions: `[L, H, capacity]` int32, absolute position of the token in each slot.
        length: slots in use (N).
    """

    start: int = 0

    def __init__(self, num_layers: int, num_heads: int, capacity: int, device: torch.device | None = None) -> None:
        """Reserve room; slot i is taken to hold position i until `keep`, `append` or `overwrite` says otherwise."""
        shape = (num_layers, num_heads, capacity)
        self.sums, self.squares, self.counts, self.last = (torch.zeros(shape, device=device) for _ in range(4))
        self.positions = torch.arange(capacity, dtype=torch.int32, device=device).repeat(num_layers, num_heads, 1)
        self.length = 0

    @classmethod
    def of_cache(cls, cache: KVCache) -> SlotScores:
        """Statistics, all zero, of the slots of a cache whose slots still stand in the order of positions."""
        num_layers, num_heads, capacity, _ = cache.keys.shape
        scores = cls(num_layers, num_heads, capacity, cache.keys.device)
        scores.length = cache.length
        return scores

    @property
    def capacity(self) -> int:
        """Slots there are."""
        return self.sums.shape[2]

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Add what a batch of rows gave to the slots `start … start + n - 1` of one layer.

        Args:
            layer: index of the layer.
            sums: `[H, n]` fp32, probabilities summed over the rows, averaged over the query heads of each KV head.
            squares: `[H, n]` fp32, squares of those averages, summed over the rows.
            counts: `[n]`, rows that could see each slot.
            last: `[H, n]` fp32, what the last row gave.
            start: slot of the first column.

        Raises:
            ValueError: when there are not so many slots.
        """
        stop = start + sums.shape[-1]
        self._check_room(stop)
        self.sums[layer, :, start:stop] += sums
        self.squares[layer, :, start:stop] += squares
        self.counts[layer, :, start:stop] += counts
        self.last[layer, :, start:stop] = last
        self.length = max(self.length, stop)

    def seed(self, start: int, stats: Tensor) -> None:
        """Begin with what was measured when a chunk was encoded by itself.

        The first tokens of text that is encoded by itself draw attention for standing first, not for what they say. So
        mean and std of the chunk's first `CHUNK_SINK_TOKENS` tokens are capped at the median of its other tokens: they
        start as ordinary tokens at best, and stay where rows of the linked prompt attend to them.

        Args:
            start: slot of the chunk's first token.
            stats: `[L, H, 2, T]`: mean and population std; token t was seen by T - t rows.

        Raises:
            ValueError: when there are not so many slots.
        """
        num_tokens = stats.shape[-1]
        stop = start + num_tokens
        self._check_room(stop)
        mean, std = _without_sinks(stats.to(self.sums)).unbind(2)
        counts = torch.arange(num_tokens, 0, -1, device=stats.device).to(self.counts)
        self.sums[:, :, start:stop] = mean * counts
        self.squares[:, :, start:stop] = (std.square() + mean.square()) * counts
        self.counts[:, :, start:stop] = counts
        self.length = max(self.length, stop)

    def mean(self, layer: int) -> Tensor:
        """Mean attention of one layer's slots, `[H, N]` fp32; 0 where no row has seen a slot."""
        used = self.sums[layer, :, : self.length], self.counts[layer, :, : self.length]
        return mean_of(*used)

    def std(self, layer: int) -> Tensor:
        """Population standard deviation of one layer's slots, `[H, N]` fp32."""
        used = [tensor[layer, :, : self.length] for tensor in (self.sums, self.squares, self.counts)]
        return std_of(*used)

    def view(self, granularity: Granularity, *, is_decoding: bool = False) -> SlotView:
        """All layers as groups that choose for themselves.

        Args:
            granularity: `head`: G = L H groups; `layer`: G = L groups, statistics averaged over the heads first.
            is_decoding: passed on.
        """
        used = (t[:, :, : self.length] for t in self._statistics())
        sums, squares, counts, last = (t.flatten(0, 1) if granularity == "head" else t.mean(1) for t in used)
        positions = self.positions[:, :, : self.length]
        positions = positions.flatten(0, 1) if granularity == "head" else positions[:, 0]
        return SlotView(positions, sums, squares, counts, last, is_decoding)

    def append(self, num_slots: int, position: int) -> None:
        """Take new slots into use, with nothing observed; the first of their tokens stands at `position`."""
        start, stop = self.length, self.length + num_slots
        self._check_room(stop)
        self.positions[:, :, start:stop] = torch.arange(position, position + num_slots, device=self.positions.device)
        self.length = stop

    def overwrite(self, slots: Tensor, position: int) -> None:
        """Forget `slots` (`[L, H]` int64): each now holds the token at `position`, with nothing observed."""
        index = slots[..., None]
        for tensor in self._statistics():
            tensor.scatter_(2, index, 0.0)
        self.positions.scatter_(2, index, position)

    def keep(self, kept: Tensor) -> None:
        """Keep only some slots, as `KVCache.keep` does; `kept`: int64, `[B]` or `[L | 1, H | 1, B]`."""
        count = kept.shape[-1]
        index = kept.expand(*self.sums.shape[:2], count)
        for tensor in (*self._statistics(), self.positions):
            tensor[:, :, :count] = tensor.gather(2, index)
        for tensor in self._statistics():
            tensor[:, :, count : self.length] = 0.0
        self.length = count

    def trim(self, capacity: int) -> None:
        """Give back the memory of all but `capacity` slots, at least those in use, as `KVCache.trim` does."""
        capacity = max(capacity, self.length)
        self.sums, self.squares, self.counts, self.last, self.positions = (
            tensor[:, :, :capacity].clone() for tensor in (*self._statistics(), self.positions)
        )

    def _statistics(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.sums, self.squares, self.counts, self.last

    def _check_room(self, num_slots: int) -> None:
        if num_slots > self.capacity:
            raise ValueError(f"scores of {num_slots} slots do not fit: room was reserved for {self.capacity}")


def _without_sinks(stats: Tensor) -> Tensor:
    """`stats` (`[L, H, 2, T]`) with the first tokens capped at the median of the others."""
    others = stats[..., CHUNK_SINK_TOKENS:]
    if others.shape[-1] == 0:
        return stats
    ordinary = others.median(-1, keepdim=True).values
    return torch.cat((stats[..., :CHUNK_SINK_TOKENS].minimum(ordinary), others), dim=-1)
