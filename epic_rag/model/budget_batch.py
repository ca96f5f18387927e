"""The sequences of a batch side by side: attention of one forward, layer by layer, over the slots of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from epic_rag.model.budget_row import BudgetRow, Limits, Rows, observe


@dataclass(frozen=True, slots=True)
class _Step:
    """Sequences that take one token in this forward, all in the same column and at the same slot."""

    sequences: slice
    column: slice
    rows: Rows


class BudgetBatch:
    """B sequences, each with slots, statistics and positions of its own.

    Attributes:
        keys: `[L, B, H, capacity, D]`, rotated to the tokens' true positions.
        values: `[L, B, H, capacity, D]`.
        rows: the sequences.
    """

    def __init__(self, keys: Tensor, values: Tensor, limits: Limits) -> None:
        """Take over slots, none in use yet."""
        self.keys, self.values, self._limits = keys, values, limits
        self.rows = [BudgetRow(keys[:, i], values[:, i], limits) for i in range(keys.shape[1])]
        self._tokens: list[Tensor] = []
        self._slots: list[int | None] = []
        self._steps: list[_Step] = []
        self._plans: dict[range, Rows] = {}

    @classmethod
    def like(cls, keys: Tensor, num_layers: int, limits: Limits) -> Self:
        """Reserve room for a batch such as `keys` (`[B, H, Q, D]`) in `num_layers` layers."""
        num_sequences, num_heads, _, head_dim = keys.shape
        shape = (num_layers, num_sequences, num_heads, limits.capacity, head_dim)
        return cls(keys.new_empty(shape), keys.new_empty(shape), limits)

    def select(self, indices: Tensor) -> BudgetBatch:
        """The batch of the sequences `indices` (`[B']` int64), each of which may come several times."""
        indices = indices.to(self.keys.device)
        chosen = BudgetBatch(self.keys.index_select(1, indices), self.values.index_select(1, indices), self._limits)
        for i, source in enumerate(indices.tolist()):
            chosen.rows[i] = self.rows[source].moved(chosen.keys[:, i], chosen.values[:, i])
        return chosen

    def begin(self, num_columns: int, valid: Tensor | None) -> None:
        """Begin a forward over `num_columns` new tokens, padding among them where `valid` (`[B, Q]` bool) is false."""
        every = torch.arange(num_columns, device=self.keys.device)
        self._tokens = [every] * len(self.rows) if valid is None else [row.nonzero()[:, 0] for row in valid]
        self._plans.clear()
        takes_one = [tokens.numel() == 1 for tokens in self._tokens]
        self._slots = [row.next_slot() if one else None for row, one in zip(self.rows, takes_one, strict=True)]
        self._steps = self._one_token_steps(num_columns)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attention of the new tokens in one layer; their keys and values are written, others may be evicted.

        Args:
            layer: index of the layer.
            queries: `[B, num_heads, Q, D]`, rotated.
            keys: `[B, H, Q, D]`, rotated.
            values: `[B, H, Q, D]`.
            scale: factor on the scores.

        Returns:
            `[B, num_heads, Q, D]`; 0 for padding.
        """
        out = torch.zeros_like(queries)
        for i, (row, tokens) in enumerate(zip(self.rows, self._tokens, strict=True)):
            if tokens.numel() == queries.shape[2] > 1:
                out[i] = row.prefill(layer, queries[i], keys[i], values[i], scale, self._plans)
            elif tokens.numel() > 1:
                new = queries[i][:, tokens], keys[i][:, tokens], values[i][:, tokens]
                out[i][:, tokens] = row.prefill(layer, *new, scale, self._plans)
        for step in self._steps:
            self._step(layer, step, (queries, keys, values), scale, out)
        return out

    def finish(self) -> None:
        """End the forward: all layers hold the new tokens."""
        for row, slot in zip(self.rows, self._slots, strict=True):
            if slot is None:
                row.finish_prefill()
            else:
                row.finish_step(slot)

    def _one_token_steps(self, num_columns: int) -> list[_Step]:
        """The whole batch where all take one token and stand at one slot, its heads as one attention; else each."""
        places = {slot: self._limits.plan(slot, 1, self.keys) for slot in self._slots if slot is not None}
        if len(places) == 1 and num_columns == 1 and None not in self._slots:
            return [_Step(slice(0, len(self.rows)), slice(0, 1), next(iter(places.values())))]
        steps = []
        for i, (slot, tokens) in enumerate(zip(self._slots, self._tokens, strict=True)):
            if slot is not None:
                column = int(tokens)
                steps.append(_Step(slice(i, i + 1), slice(column, column + 1), places[slot]))
        return steps

    def _step(self, layer: int, step: _Step, new: tuple[Tensor, Tensor, Tensor], scale: float, out: Tensor) -> None:
        """Attention of one token each, into `out`; `new`: queries, keys and values of the forward."""
        members, rows = self.rows[step.sequences], step.rows
        queries, keys, values = (tensor[step.sequences, :, step.column] for tensor in new)
        for row, key, value in zip(members, keys, values, strict=True):
            row.cache.write(layer, rows.plan.slots, key, value)
        all_keys, all_values = (slots[layer, step.sequences].flatten(0, 1) for slots in (self.keys, self.values))
        mixed, seen = rows.attend(queries.flatten(0, 1), all_keys, all_values, scale)
        out[step.sequences, :, step.column] = mixed.view_as(queries)
        num_heads = keys.shape[1]
        for i, row in enumerate(members):
            observe(row.scores, layer, rows, seen, slice(i * num_heads, (i + 1) * num_heads))
