"""`attention_scores`: what slots receive from the rows of one attention. Specification: `attention_scores_ref`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from epic_rag.kernels.row_plan import RowGroup, RowPlan, row_groups

NARROW_SLOTS = 1024
"""Up to so many slots, a group's scores are added for all heads at once: there, what counts is how often torch is
called (encoding a chunk: +7% instead of +18%). Wider ones are added head by head, while the cache still holds them."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnScores:
    """Attention that n slots receive from the rows of one layer; filled a group of rows at a time, always in fp32.

    Probabilities are averaged over the query heads of a KV head first, then summed, and squared and summed: the mean
    and the deviation over rows of what a slot of the KV cache receives (RoCo, arXiv 2402.06262). Squares of
    probabilities are never formed in half precision, where they vanish below 1.7e-4.

    Attributes:
        start: the first of the slots; the last is the plan's last.
        sums: `[H, n]`.
        squares: `[H, n]`.
        last: `[H, n]`, of the last row alone.
    """

    start: int
    sums: Tensor
    squares: Tensor
    last: Tensor

    @classmethod
    def zeros(cls, num_kv_heads: int, plan: RowPlan, start: int = 0) -> Self:
        """Nothing received yet.

        Raises:
            ValueError: when no slot of the plan is at or behind `start`.
        """
        if not 0 <= start < plan.num_slots:
            raise ValueError(f"scores from slot {start} on: expected one of the {plan.num_slots} slots in use")
        shape = (3, num_kv_heads, plan.num_slots - start)
        return cls(start, *torch.zeros(shape, dtype=torch.float32, device=plan.slots.device))

    def add(self, heads: int | slice, weights: Tensor, *, is_last: bool) -> None:
        """Add rows.

        Args:
            heads: KV heads that they belong to.
            weights: `[…, G, rows, c]`, probabilities of c slots from `start` on; G query heads to a KV head, and one
                more dimension in front where `heads` is a slice.
            is_last: whether the plan's last row is among them.
        """
        group, count = weights.shape[-3], weights.shape[-1]
        if count == 0:
            return
        received = weights[..., 0, :, :].to(torch.float32, copy=True)
        for head in range(1, group):  # one by one: torch's own sum would first write all of them in fp32
            received.add_(weights[..., head, :, :])
        self.sums[heads, ..., :count].add_(received.sum(dim=-2), alpha=1 / group)
        if is_last:
            self.last[heads, ..., :count] = received[..., -1, :] / group
        self.squares[heads, ..., :count].add_(received.square_().sum(dim=-2), alpha=1 / group**2)


def row_counts(plan: RowPlan, start: int = 0) -> Tensor:
    """How many of the plan's rows see each slot from `start` on: `[n]` fp32, exact below 2**24 rows."""
    columns = torch.arange(start, plan.num_slots, device=plan.slots.device)
    return (plan.slots.numel() - torch.searchsorted(plan.slots, columns)).float()


def row_weights(rows: Tensor, keys: Tensor, group: RowGroup) -> Tensor:
    """Attention probabilities of one group of rows; the products are in the dtype of `rows`, the softmax rounds once.

    Args:
        rows: `[…, G, rows, D]`, scaled queries of the G query heads of a KV head.
        keys: `[…, N, D]` of that head.
        group: which rows they are.

    Returns:
        `[…, G, rows, visible]`.
    """
    scores = rows.flatten(-3, -2) @ keys[..., : group.visible, :].transpose(-1, -2)
    scores = scores.view(*rows.shape[:-1], group.visible)
    if group.mask is not None:
        scores[..., group.masked_from :].add_(group.mask)
    return torch.softmax(scores, dim=-1)


def attention_scores(queries: Tensor, keys: Tensor, plan: RowPlan, scale: float, scores: ColumnScores) -> None:
    """Add what the plan's rows give to `scores`, where a fused attention keeps its probabilities to itself.

    The probabilities are formed once more, a group of rows at a time: no N x N matrix. Where `link_attention` forms
    them itself, on the CPU for chosen rows, they are the same.

    Args:
        queries: `[num_heads, Q, D]`, rotated.
        keys: `[H, N, D]`, rotated; `plan.num_slots <= N`.
        plan: the rows.
        scale: factor on the scores.
        scores: added to.

    Raises:
        ValueError: when queries, keys, plan and scores do not fit together.
    """
    num_heads, num_rows, head_dim = queries.shape
    num_kv_heads = keys.shape[0]
    room = scores.start + scores.sums.shape[1]
    if num_heads % num_kv_heads or num_rows != plan.slots.numel() or plan.num_slots > min(keys.shape[1], room):
        raise ValueError(
            f"attention_scores: got {num_heads} query heads over {num_kv_heads} KV heads, {num_rows} rows for a plan "
            f"of {plan.slots.numel()}, {keys.shape[1]} slots and scores of {room} for a plan of {plan.num_slots}"
        )
    folded = queries.reshape(num_kv_heads, num_heads // num_kv_heads, num_rows, head_dim)
    for group in plan.groups or row_groups(plan.slots, queries.dtype):
        if group.visible <= scores.start:
            continue
        rows = folded[:, :, group.start : group.stop] * scale
        scores.add(slice(None), row_weights(rows, keys, group)[..., scores.start :], is_last=group.stop == num_rows)
