"""Stage evict: bring the KV of a prompt down to a budget, in every layer and head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from epic_rag.errors import ConfigError
from epic_rag.evict.ranking import Policy
from epic_rag.evict.scores import SlotScores
from epic_rag.evict.view import SlotView, unscored_view
from epic_rag.kv_cache import KVCache


def evict(
    cache: KVCache,
    policy: Policy,
    budget_tokens: int | None,
    pinned_head: int,
    pinned_tail: int,
    scores: SlotScores | None = None,
) -> int:
    """Bring `cache` down to the budget.

    Args:
        cache: KV of N slots, changed in place.
        policy: chooses.
        budget_tokens: slots that may stay; None: all.
        pinned_head: so many first slots stay (the prompt's prefix).
        pinned_tail: so many last slots stay (the question).
        scores: statistics of the same slots, kept in step; None: the policy needs none, and slots stand in the order
            of their positions from 0.

    Returns:
        Slots kept. Pinned slots stay even where they alone exceed the budget.

    Raises:
        ConfigError: the policy needs scores and there are none.
        ValueError: the scores are not of these slots.
    """
    if budget_tokens is None or budget_tokens >= cache.length:
        return cache.length
    pinned = pin(cache.length, pinned_head, pinned_tail, cache.keys.device)
    kept = choose(cache, policy, max(budget_tokens, int(pinned.sum())), pinned, scores)
    cache.keep(kept)
    if scores is not None:
        scores.keep(kept)
    return cache.length


def choose(
    cache: KVCache, policy: Policy, budget_tokens: int, pinned: Tensor, scores: SlotScores | None = None
) -> Tensor:
    """The slots that stay, `[L | 1, H | 1, budget_tokens]` int64, ascending; `pinned`: `[N]` bool among them."""
    if scores is None:
        if policy.needs_scores:
            raise ConfigError(f"policy '{policy.name}' needs attention scores, which this path does not collect")
        return policy.keep(unscored_view(cache.length, cache.keys.device), pinned, budget_tokens)[None]
    if scores.length != cache.length:
        raise ValueError(f"scores of {scores.length} slots do not belong to a cache of {cache.length}")
    kept = policy.keep(view_for(policy, scores), pinned, budget_tokens)
    return ungroup(kept, policy, scores)


def view_for(policy: Policy, scores: SlotScores, *, is_decoding: bool = False) -> SlotView:
    """The slots in the groups that `policy` chooses for; one group for all where it needs no scores."""
    view = scores.view(policy.granularity, is_decoding=is_decoding)
    return view if policy.needs_scores else view.first_group()


def ungroup(chosen: Tensor, policy: Policy, scores: SlotScores) -> Tensor:
    """What was chosen per group, `[G, …]`, per layer and head, `[L | 1, H | 1, …]`."""
    if chosen.shape[0] == 1:
        return chosen[None]
    num_heads = scores.sums.shape[1] if policy.granularity == "head" else 1
    return chosen.reshape(-1, num_heads, *chosen.shape[1:])


def pin(num_slots: int, head: int, tail: int, device: torch.device) -> Tensor:
    """Marks the first `head` and the last `tail` of N slots; `[N]` bool."""
    slots = torch.arange(num_slots, device=device)
    return (slots < head) | (slots >= num_slots - tail)


def prefill_ranges(num_tokens: int, budget_tokens: int, stride_tokens: int) -> Iterator[range]:
    """Token ranges to prefill one after the other, evicting after each, so that KV peaks at budget + stride.

    Args:
        num_tokens: tokens of the prompt.
        budget_tokens: slots that stay after each eviction.
        stride_tokens: tokens that come on top of them at a time.

    Yields:
        Consecutive ranges; none is empty.
    """
    start, stop = 0, budget_tokens + stride_tokens
    while start < num_tokens:
        yield range(start, min(stop, num_tokens))
        start, stop = stop, stop + stride_tokens
