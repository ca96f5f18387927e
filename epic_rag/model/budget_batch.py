"""The sequences of a batch side by side: attention of one forward, layer by layer, over the slots of each."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from epic_rag.model.budget_row import BudgetRow, Limits, Rows, observe


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
        self._columns = 0
        self._tokens: list[Tensor] | None = None
        self._slots: list[int | None] = []
        self._groups: list[tuple[slice, Rows]] = []
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
        self._columns = num_columns
        self._tokens = None if valid is None else [row.nonzero()[:, 0] for row in valid]
        self._plans.clear()
        if num_columns == 1:
            self._slots = [row.next_slot() if self._takes(i) else None for i, row in enumerate(self.rows)]
            self._groups = self._step_groups()

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
        one_layer = self._step if self._columns == 1 else self._prefill
        return one_layer(layer, queries, keys, values, scale)

    def finish(self) -> None:
        """End the forward: all layers hold the new tokens."""
        for i, row in enumerate(self.rows):
            if self._columns > 1:
                row.finish_prefill()
            elif (slot := self._slots[i]) is not None:
                row.finish_step(slot)

    def _takes(self, sequence: int) -> bool:
        return self._tokens is None or self._tokens[sequence].numel() > 0

    def _step_groups(self) -> list[tuple[slice, Rows]]:
        """The whole batch where all stand at the same slot, so that its heads are one attention; else one by one."""
        places = {slot: self._limits.plan(slot, 1, self.keys) for slot in self._slots if slot is not None}
        if len(places) == 1 and None not in self._slots:
            return [(slice(0, len(self.rows)), next(iter(places.values())))]
        return [(slice(i, i + 1), places[slot]) for i, slot in enumerate(self._slots) if slot is not None]

    def _step(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        out, num_heads = torch.zeros_like(queries), keys.shape[1]
        for group, rows in self._groups:
            members = self.rows[group]
            for row, key, value in zip(members, keys[group], values[group], strict=True):
                row.cache.write(layer, rows.plan.slots, key, value)
            slots = self.keys[layer, group].flatten(0, 1), self.values[layer, group].flatten(0, 1)
            mixed, seen = rows.attend(queries[group].flatten(0, 1), *slots, scale)
            out[group] = mixed.view_as(out[group])
            for i, row in enumerate(members):
                observe(row.scores, layer, rows, seen, slice(i * num_heads, (i + 1) * num_heads))
        return out

    def _prefill(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        out = torch.zeros_like(queries)
        for i, row in enumerate(self.rows):
            if self._tokens is None:
                out[i] = row.prefill(layer, queries[i], keys[i], values[i], scale, self._plans)
            elif self._takes(i):
                tokens = self._tokens[i]
                new = queries[i][:, tokens], keys[i][:, tokens], values[i][:, tokens]
                out[i][:, tokens] = row.prefill(layer, *new, scale, self._plans)
        return out
