"""EasyKV's RoCo, decision for decision, with its quirks: the reference that published figures rest on.

Written from a description of its behaviour, for one layer and any number of KV heads, which choose for themselves. The
default, `epic_rag.evict.roco`, differs where the reference does what nobody would ask for:

* a prefill ends at a size that suits the stride, which may exceed the budget by as much, or evicts nothing at all;
* first tokens are protected while prefilling and not while decoding;
* below 34 slots the guarded latest tokens outnumber the protected ones, and the oldest of them lose their guard;
* in mode `decode` the prompt is neither scored nor evicted, so that the cache is as long as the prompt at least.

Equal stds and means are taken in the order of slots, where the reference leaves the order to its sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from epic_rag.errors import ConfigError
from epic_rag.evict.roco import DECODE_SHARE, GUARD_TOKENS, PROMPT_SHARE, SINK_TOKENS
from epic_rag.evict.scores import SlotScores
from epic_rag.evict.view import SlotView


class AttentionRows(Protocol):
    """Answers what attention the cached tokens receive."""

    def __call__(self, queries: range, cached: Tensor) -> Tensor:
        """Attention of consecutive tokens.

        Args:
            queries: the tokens that attend; the last of the cached ones.
            cached: `[H, N]` int64, token in each slot, ascending.

        Returns:
            `[H, Q, N]` fp32 probabilities, averaged over the query heads of a KV head; 0 for what a query cannot see.
        """


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The sizes a prefill goes through.

    Attributes:
        num_tokens: tokens of the prompt (n).
        limit_tokens: budget and stride together (b); the shares are taken of it.
        final_tokens: slots after each eviction (idx).
        first_tokens: tokens forwarded before the first chunk (r0).
        stride_tokens: tokens of a chunk (s).
    """

    num_tokens: int
    limit_tokens: int
    final_tokens: int
    first_tokens: int
    stride_tokens: int


def plan_prefill(num_tokens: int, budget: float, stride_tokens: int, *, is_auto: bool = False) -> PrefillPlan:
    """Sizes of the reference's prefill.

    Args:
        num_tokens: tokens of the prompt.
        budget: a share of them as float, tokens as int.
        stride_tokens: tokens of a chunk.
        is_auto: mode `auto` forwards as little as it can before the first chunk.

    Raises:
        ConfigError: a stride below 1, or a final size that is shorter than the stride.
    """
    if stride_tokens < 1:
        raise ConfigError(f"the stride must be at least 1 token, got {stride_tokens}")
    limit = _budget_tokens(num_tokens, budget) + stride_tokens
    final = limit - (limit - num_tokens) % stride_tokens
    if final >= num_tokens:
        return PrefillPlan(num_tokens, limit, final, num_tokens, stride_tokens)
    first = (final - 1) % stride_tokens + 1 if is_auto else final - stride_tokens
    if first < 0:
        raise ConfigError(
            f"EasyKV cannot prefill {num_tokens} tokens to {final} in strides of {stride_tokens}: "
            "give a budget of at least one stride"
        )
    return PrefillPlan(num_tokens, limit, final, first, stride_tokens)


def give_up(view: SlotView, scope_tokens: int, count: int, sink_tokens: int = 0) -> Tensor:
    """The reference's decision.

    Args:
        view: N slots in G groups, in the order of their tokens.
        scope_tokens: so many slots, those of the smallest std, can be given up.
        count: slots to give up.
        sink_tokens: so many first slots count as infinitely uneven, as the latest do.

    Returns:
        `[G, count]` int64, the smallest mean first.
    """
    std = view.std
    std[:, -GUARD_TOKENS:] = torch.inf
    std[:, :sink_tokens] = torch.inf
    scope = std.argsort(dim=-1, stable=True)[:, :scope_tokens]
    order = view.mean.gather(-1, scope).argsort(dim=-1, stable=True)
    return scope.gather(-1, order[:, :count])


def decode(rows: AttentionRows, num_heads: int, start: int, stop: int, budget_tokens: int) -> Iterator[Tensor]:
    """Mode `decoding`: tokens given up while tokens `start … stop - 1` are generated.

    Args:
        rows: attention over the generated tokens in the cache.
        num_heads: KV heads.
        start: first generated token.
        stop: token behind the last one.
        budget_tokens: generated tokens that stay, at least 1.

    Yields:
        `[H, 1]` int64 for each token from the one that exceeds the budget on.
    """
    slots = _Slots(SlotScores(1, num_heads, budget_tokens + 1), rows)
    yield from _generate(slots, range(start, stop), budget_tokens, budget_tokens)


def prefill(
    rows: AttentionRows, num_heads: int, plan: PrefillPlan, *, keeps_attention: bool = False
) -> Iterator[Tensor]:
    """Mode `encoding`: tokens given up while a prompt is prefilled.

    Args:
        rows: attention over the cached tokens.
        num_heads: KV heads.
        plan: sizes.
        keeps_attention: score from the first token on, rather than from the first chunk that exceeds the final size.

    Yields:
        `[H, s]` int64, the smallest mean first, for each chunk that exceeds the final size.
    """
    yield from _prefill(_Slots.for_plan(plan, num_heads, rows), plan, keeps_attention)


def auto(
    rows: AttentionRows,
    num_heads: int,
    num_tokens: int,
    stop: int,
    budget: float,
    stride_tokens: int,
    *,
    keeps_attention: bool = False,
) -> Iterator[Tensor]:
    """Mode `auto`: one budget for prompt and answer.

    A budget above the prompt is spent on generated tokens, as `decode` does. Any other is enforced on the prompt; each
    generated token then takes the place of one of all, chosen as in `decode` with b for the budget.

    Args:
        rows: attention over the cached tokens; over the generated ones where the budget exceeds the prompt.
        num_heads: KV heads.
        num_tokens: tokens of the prompt.
        stop: token behind the last generated one.
        budget: a share of the prompt as float, tokens as int.
        stride_tokens: tokens of a chunk.
        keeps_attention: as in `prefill`.

    Yields:
        What `prefill` yields, and then `[H, 1]` int64 for each generated token that exceeds the final size.
    """
    budget_tokens = _budget_tokens(num_tokens, budget)
    if budget_tokens > num_tokens:
        yield from decode(rows, num_heads, num_tokens, stop, budget_tokens - num_tokens)
        return
    plan = plan_prefill(num_tokens, budget, stride_tokens, is_auto=True)
    slots = _Slots.for_plan(plan, num_heads, rows)
    yield from _prefill(slots, plan, keeps_attention)
    yield from _generate(slots, range(num_tokens, stop), plan.final_tokens, plan.limit_tokens)


@dataclass(frozen=True, slots=True)
class _Slots:
    """The slots of one layer, and where their attention comes from."""

    scores: SlotScores
    rows: AttentionRows

    @classmethod
    def for_plan(cls, plan: PrefillPlan, num_heads: int, rows: AttentionRows) -> _Slots:
        return cls(SlotScores(1, num_heads, max(plan.final_tokens, plan.num_tokens) + plan.stride_tokens), rows)

    def append(self, tokens: range) -> None:
        self.scores.append(len(tokens), tokens.start)

    def observe(self, queries: range) -> None:
        seen = self.rows(queries, self.scores.positions[0, :, : self.scores.length].long())
        behind = torch.arange(self.scores.length, 0, -1, device=seen.device)  # a slot's own row and those behind it
        counts = behind.clamp_max(len(queries))
        self.scores.observe(0, seen.sum(1), seen.square().sum(1), counts, seen[:, -1])

    def evict(self, scope_tokens: int, count: int, sink_tokens: int = 0) -> Tensor:
        view = self.scores.view("head")
        gone = give_up(view, scope_tokens, count, sink_tokens)
        tokens = view.positions.gather(-1, gone).long()
        stays = torch.ones_like(view.positions, dtype=torch.bool).scatter(-1, gone, False)
        self.scores.keep(stays.nonzero()[:, 1].view(1, stays.shape[0], -1))
        return tokens


def _prefill(slots: _Slots, plan: PrefillPlan, keeps_attention: bool) -> Iterator[Tensor]:
    stride = plan.stride_tokens
    scope = max(plan.limit_tokens - int(plan.limit_tokens * PROMPT_SHARE) - SINK_TOKENS, stride)
    slots.append(range(plan.first_tokens))
    if keeps_attention and plan.first_tokens:
        slots.observe(range(plan.first_tokens))
    for start in range(plan.first_tokens, plan.num_tokens, stride):
        chunk = range(start, start + stride)
        slots.append(chunk)
        exceeds = slots.scores.length > plan.final_tokens
        if exceeds or keeps_attention:
            slots.observe(chunk)
        if exceeds:
            yield slots.evict(scope, stride, SINK_TOKENS)


def _generate(slots: _Slots, tokens: range, final_tokens: int, limit_tokens: int) -> Iterator[Tensor]:
    scope = limit_tokens - int(limit_tokens * DECODE_SHARE)
    for token in tokens:
        slots.append(range(token, token + 1))
        slots.observe(range(token, token + 1))
        if slots.scores.length > final_tokens:
            yield slots.evict(scope, 1)


def _budget_tokens(num_tokens: int, budget: float) -> int:
    return int(num_tokens * budget) if isinstance(budget, float) else budget
