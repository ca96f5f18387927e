"""One sequence of a batch: its KV under a budget, and what decides which slots stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from epic_rag.evict import Policy, SlotKeeper, SlotScores, evict
from epic_rag.kernels.attention_scores import ColumnScores, row_counts
from epic_rag.kernels.link_attention import link_attention
from epic_rag.kernels.row_plan import RowPlan, plan_rows
from epic_rag.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for every sequence of a batch.

    Attributes:
        policy: chooses.
        budget_tokens: slots that stay.
        stride_tokens: slots that may come on top while a prompt is prefilled.
    """

    policy: Policy
    budget_tokens: int
    stride_tokens: int

    @property
    def capacity(self) -> int:
        """Slots to reserve for a sequence."""
        return self.budget_tokens + self.stride_tokens

    def parts(self, num_slots: int, num_tokens: int) -> Iterator[range]:
        """Cut `num_tokens` new tokens so that none exceeds the capacity, when `num_slots` are in use before them."""
        start, stop = 0, self.capacity - num_slots
        while start < num_tokens:
            yield range(start, min(stop, num_tokens))
            start, stop = stop, stop + self.stride_tokens

    def plan(self, start: int, count: int, like: Tensor) -> Rows:
        """The rows at slots `start … start + count - 1`, on the device and in the dtype of `like`."""
        slots = torch.arange(start, start + count, device=like.device)
        plan = plan_rows(slots, like.dtype, group_prefill=self.policy.needs_scores)
        return Rows(plan, row_counts(plan) if self.policy.needs_scores else None)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to compute, the same in every layer; `counts`: `[N]` fp32, of what is to be scored."""

    plan: RowPlan
    counts: Tensor | None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, ColumnScores | None]:
        """Attention of the rows over the slots (see `link_attention`), and what the slots receive."""
        scores = None if self.counts is None else ColumnScores.zeros(keys.shape[0], self.plan)
        return link_attention(queries, keys, values, self.plan, scale, scores), scores


class BudgetRow:
    """The slots of one sequence, in all layers.

    Attributes:
        cache: keys and values, views of the batch's.
        scores: statistics of the same slots.
    """

    def __init__(self, keys: Tensor, values: Tensor, limits: Limits) -> None:
        """Take over empty slots; `keys`, `values`: `[L, H, capacity, D]`."""
        num_layers, num_heads, capacity, _ = keys.shape
        self.cache = _over(keys, values)
        self.scores = SlotScores(num_layers, num_heads, capacity, keys.device)
        self._limits = limits
        self._keeper: SlotKeeper | None = None
        self._part: tuple[KVCache, SlotScores] | None = None

    def moved(self, keys: Tensor, values: Tensor) -> BudgetRow:
        """A copy of this row's books over slots that hold the same already."""
        copy = BudgetRow(keys, values, self._limits)
        copy.cache.length, copy.cache.next_position = self.cache.length, self.cache.next_position
        for ours, theirs in zip(_tensors(copy.scores), _tensors(self.scores), strict=True):
            ours.copy_(theirs)
        copy.scores.length = self.scores.length
        return copy

    def prefill(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float, plans: dict[range, Rows]
    ) -> Tensor:
        """Take new tokens in one layer: chunk by chunk, each over the slots that the one before left.

        What a layer keeps depends on its own attention alone, so going through all chunks of one layer before the next
        layer gives what going through all layers of one chunk before the next chunk gives.

        Args:
            layer: index of the layer.
            queries: `[num_heads, Q, D]`, rotated.
            keys: `[H, Q, D]`, rotated.
            values: `[H, Q, D]`.
            scale: factor on the scores.
            plans: plans made so far for this forward, by slots.

        Returns:
            `[num_heads, Q, D]`.
        """
        limits, out = self._limits, torch.empty_like(queries)
        cache, scores = _layer(self.cache, self.scores, layer)
        for part in limits.parts(cache.length, queries.shape[1]):
            new, position = slice(part.start, part.stop), cache.next_position
            slots = range(cache.length, cache.length + len(part))
            if slots not in plans:
                plans[slots] = limits.plan(slots.start, len(part), keys)
            rows = plans[slots]
            scores.append(len(part), position)
            cache.write(0, rows.plan.slots, keys[:, new], values[:, new])
            out[:, new], seen = rows.attend(queries[:, new], cache.keys[0], cache.values[0], scale)
            observe(scores, 0, rows, seen)
            cache.advance(slots.stop)
            cache.next_position = position + len(part)
            evict(cache, limits.policy, limits.budget_tokens, 0, 0, scores)
        self._part = cache, scores
        return out

    def next_slot(self) -> int:
        """Make room for one token in all layers; the slot to attend from."""
        if self._keeper is None:
            self._keeper = SlotKeeper(self.cache, self.scores, self._limits.policy, self._limits.budget_tokens)
        return self._keeper.next_slot()

    def finish_step(self, slot: int) -> None:
        """Say that the token which `next_slot` made room for is written in all layers."""
        position = self.cache.next_position
        self.cache.advance(slot + 1)
        self.cache.next_position = position + 1

    def finish_prefill(self) -> None:
        """Say that `prefill` went through all layers."""
        if self._part is None:
            return
        cache, scores = self._part
        self.cache.length, self.cache.next_position = cache.length, cache.next_position
        self.scores.length = scores.length
        self._part = self._keeper = None


def observe(scores: SlotScores, layer: int, rows: Rows, seen: ColumnScores | None, heads: slice = slice(None)) -> None:
    """Add what one sequence's `heads` of `seen` received to its statistics."""
    if seen is not None and rows.counts is not None:
        scores.observe(layer, seen.sums[heads], seen.squares[heads], rows.counts, seen.last[heads])


def _tensors(scores: SlotScores) -> tuple[Tensor, ...]:
    return scores.sums, scores.squares, scores.counts, scores.last, scores.positions


def _over(keys: Tensor, values: Tensor) -> KVCache:
    """An empty cache that uses `keys` and `values` as its slots."""
    num_layers, num_heads, _, head_dim = keys.shape
    cache = KVCache((num_layers, num_heads, 0, head_dim), keys.dtype, keys.device)
    cache.keys, cache.values = keys, values
    return cache


def _layer(cache: KVCache, scores: SlotScores, layer: int) -> tuple[KVCache, SlotScores]:
    """One layer of both, over the same memory, with lengths of its own."""
    one = slice(layer, layer + 1)
    part = _over(cache.keys[one], cache.values[one])
    part.length, part.next_position = cache.length, cache.next_position
    view = SlotScores(1, cache.keys.shape[1], 0, cache.keys.device)
    view.sums, view.squares, view.counts, view.last, view.positions = (t[one] for t in _tensors(scores))
    view.length = scores.length
    return part, view
