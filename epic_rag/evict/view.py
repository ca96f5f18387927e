"""What a policy may know of the slots it chooses among."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def mean_of(sums: Tensor, counts: Tensor) -> Tensor:
    """Mean attention a slot received; 0 where no row has seen it. Any shape, fp32."""
    return sums / counts.clamp_min(1.0)


def std_of(sums: Tensor, squares: Tensor, counts: Tensor) -> Tensor:
    """Population standard deviation of the attention a slot received. Any shape, fp32.

    Rounding leaves the variance of a constant column slightly below zero, hence the clamp.
    """
    variance = squares / counts.clamp_min(1.0) - mean_of(sums, counts).square()
    return variance.clamp_min(0.0).sqrt()


@dataclass(frozen=True, slots=True)
class SlotView:
    """N slots in each of G groups that choose for themselves: every head of every layer, or every layer.

    Attributes:
        positions: `[G, N]` int32, absolute position of the token in each slot; no two alike in a group.
        sums: `[G, N]` fp32, attention probabilities received (averaged over the query heads of a KV head).
        squares: `[G, N]` fp32, their squares, summed.
        counts: `[G, N]` fp32, rows that could see the slot.
        last: `[G, N]` fp32, what the latest row gave.
        is_decoding: one token is about to come, rather than a chunk or the end of a prompt.
    """

    positions: Tensor
    sums: Tensor
    squares: Tensor
    counts: Tensor
    last: Tensor
    is_decoding: bool = False

    @property
    def mean(self) -> Tensor:
        """`[G, N]` fp32."""
        return mean_of(self.sums, self.counts)

    @property
    def std(self) -> Tensor:
        """`[G, N]` fp32."""
        return std_of(self.sums, self.squares, self.counts)

    def first_group(self) -> SlotView:
        """The first group alone, G = 1: enough where all would choose alike."""
        return SlotView(
            self.positions[:1], self.sums[:1], self.squares[:1], self.counts[:1], self.last[:1], self.is_decoding
        )


def unscored_view(num_slots: int, device: torch.device) -> SlotView:
    """One group of slots in the order of their tokens, with no attention observed."""
    positions = torch.arange(num_slots, dtype=torch.int32, device=device)[None]
    nothing = torch.zeros(1, num_slots, device=device)
    return SlotView(positions, nothing, nothing, nothing, nothing)
