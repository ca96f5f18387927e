"""Which rows one forward computes, and how they are grouped so that no N x N mask is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_PER_GROUP = 64
"""Rows that share one matrix product. Measured on two cores, 104 and 296 rows over 4,136 slots, bf16: below 32 rows the
products are too thin (2x slower), above 128 the masked-out part of the scores costs more than it saves."""
VISIBLE_STEP = 256
"""Slots of a group are counted up to a multiple of this, so that few shapes of products occur: for each, oneDNN
compiles and keeps code (measured: 0.5 ms and 0.5 MB a shape)."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows `start:stop` over the slots `0:visible`, minus what `mask` hides from `masked_from` on."""

    start: int
    stop: int
    visible: int
    masked_from: int
    mask: Tensor | None
    """Additive `[rows, visible - masked_from]`, 0 or -inf; None when every row sees all of `0:visible`."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The rows of one forward: row i stands at slot `slots[i]` and attends slots `0 … slots[i]`."""

    slots: Tensor
    """`[Q]` int64, strictly ascending."""
    num_slots: int
    """Slots in use once these rows are written: N."""
    is_prefill: bool
    """The rows are exactly the slots `0 … Q - 1`: plain causal attention."""
    groups: tuple[RowGroup, ...]
    """All rows, in order; none for a prefill, unless they were asked for: its attention needs none, its scores do."""


def plan_rows(
    slots: Tensor, dtype: torch.dtype, num_slots: int | None = None, *, group_prefill: bool = False
) -> RowPlan:
    """Group ascending `slots` (`[Q]` int64) for `link_attention`.

    Args:
        slots: where the rows stand; strictly ascending.
        dtype: dtype of the attention scores, hence of the masks.
        num_slots: slots in use, default `slots[-1] + 1`.
        group_prefill: group the rows of a whole prefill too, for its scores.

    Raises:
        ValueError: when `slots` is empty or not strictly ascending.
    """
    if slots.dim() != 1 or slots.numel() == 0 or bool((slots[1:] <= slots[:-1]).any()):
        raise ValueError(f"rows must stand at strictly ascending slots, got a tensor of shape {tuple(slots.shape)}")
    used = int(slots[-1]) + 1 if num_slots is None else num_slots
    is_prefill = int(slots[0]) == 0 and int(slots[-1]) + 1 == slots.numel() == used
    groups = () if is_prefill and not group_prefill else tuple(row_groups(slots, dtype))
    return RowPlan(slots, used, is_prefill, groups)


def row_groups(slots: Tensor, dtype: torch.dtype) -> Iterator[RowGroup]:
    """Cut rows at ascending `slots` (`[Q]` int64) into groups, with masks of `dtype`."""
    written = int(slots[-1]) + 1
    for start in range(0, slots.numel(), ROWS_PER_GROUP):
        rows = slots[start : start + ROWS_PER_GROUP]
        first, seen = int(rows[0]) + 1, int(rows[-1]) + 1
        visible = min(written, -(-seen // VISIBLE_STEP) * VISIBLE_STEP)
        mask = None
        if visible > first:
            columns = torch.arange(first, visible, device=slots.device)
            mask = torch.zeros(rows.numel(), visible - first, dtype=dtype, device=slots.device)
            mask.masked_fill_(columns[None, :] > rows[:, None], float("-inf"))
        yield RowGroup(start, start + rows.numel(), visible, first, mask)
