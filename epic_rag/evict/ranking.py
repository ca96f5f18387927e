"""What a policy is, and how slots are picked once a policy has said what each is worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from epic_rag.evict.scores import Granularity
from epic_rag.evict.view import SlotView

STAYS = float("inf")
"""Worth of a slot that must not be given up."""


class Policy(Protocol):
    """Chooses which slots stay, for each group of a view by itself."""

    @property
    def name(self) -> str:
        """As written after `--policy`."""

    @property
    def needs_scores(self) -> bool:
        """False when positions alone decide, so that every layer and head keeps the same tokens."""

    @property
    def granularity(self) -> Granularity:
        """`layer`: all heads of a layer keep the same tokens; `head`: each its own."""

    def keep(self, view: SlotView, pinned: Tensor, budget_tokens: int) -> Tensor:
        """Slots to keep.

        Args:
            view: N slots in G groups.
            pinned: `[N]` bool, slots that must stay.
            budget_tokens: how many slots stay, exactly: at least the pinned ones and at most N.

        Returns:
            `[G, budget_tokens]` int64, ascending.
        """

    def give_up(self, view: SlotView, pinned: Tensor) -> Tensor:
        """The one slot to give up: `keep` with a budget of N - 1 keeps the others.

        Returns:
            `[G]` int64.
        """


class Ranking(ABC):
    """A policy that says what slots are worth. The least worth goes; of equals, the older one."""

    __slots__ = ()

    @abstractmethod
    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """What each slot is worth.

        Args:
            view: N slots in G groups.
            pinned: `[N]` bool; what pinned slots are worth does not matter.
            free_tokens: how many slots stay that are not pinned; at most so many may be worth `STAYS`.

        Returns:
            `[G, N]` fp32, none below 0.
        """

    def keep(self, view: SlotView, pinned: Tensor, budget_tokens: int) -> Tensor:
        """The `budget_tokens` slots worth most, pinned ones first; see `Policy.keep`."""
        num_slots = view.positions.shape[-1]
        free_tokens = budget_tokens - int(pinned.sum())
        if free_tokens < 0 or budget_tokens > num_slots:
            raise ValueError(
                f"{budget_tokens} of {num_slots} slots cannot be kept with {budget_tokens - free_tokens} of them pinned"
            )
        if budget_tokens == num_slots:
            return torch.arange(num_slots, device=view.positions.device).expand(view.positions.shape)
        order = self._order(view, pinned, free_tokens)
        border = order.kthvalue(num_slots - budget_tokens, dim=-1, keepdim=True).values
        return (order > border).nonzero()[:, 1].view(order.shape[0], budget_tokens)

    def give_up(self, view: SlotView, pinned: Tensor) -> Tensor:
        """The slot worth least; see `Policy.give_up`."""
        free_tokens = view.positions.shape[-1] - int(pinned.sum()) - 1
        if free_tokens < 0:
            raise ValueError("every slot is pinned, so none can be given up")
        return self._order(view, pinned, free_tokens).argmin(-1)

    def _order(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """Worth and, below it, position as one number, no two alike in a group; `[G, N]` int64."""
        worth = self.worth(view, pinned, free_tokens).masked_fill(pinned, STAYS)
        return (worth.view(torch.int32).long() << 32) | view.positions  # bits of floats from 0 up sort as the floats do


def newest(positions: Tensor, pinned: Tensor, count: int) -> Tensor:
    """Marks the `count` slots with the latest tokens that are not pinned; `[G, N]` bool."""
    if count < 1:
        return torch.zeros_like(positions, dtype=torch.bool)
    free = positions.masked_fill(pinned, -1)
    oldest = free.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return free >= oldest


def sinks(positions: Tensor, sink_tokens: int, free_tokens: int) -> Tensor:
    """Marks the first tokens of the sequence, at most half of what stays; `[G, N]` bool."""
    return positions < min(sink_tokens, free_tokens // 2)
