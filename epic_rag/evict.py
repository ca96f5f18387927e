"""Stage evict: drop tokens of the linked KV down to a budget. One small class a policy, one registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from epic_rag.errors import ConfigError
from epic_rag.kv_cache import KVCache


class Policy(Protocol):
    """Chooses which slots of a linked KV stay."""

    @property
    def name(self) -> str:
        """As written after `--policy`."""

    def keep(self, pinned: Tensor, budget_tokens: int) -> Tensor:
        """Slots to keep.

        Args:
            pinned: `[N]` bool, slots that must stay; at most `budget_tokens` of them.
            budget_tokens: how many slots may stay, less than N.

        Returns:
            `[budget_tokens]` int64, ascending.
        """


@dataclass(frozen=True, slots=True)
class FullPolicy:
    """`full`: every token stays; it takes no budget."""

    name: str = "full"

    def keep(self, pinned: Tensor, budget_tokens: int) -> Tensor:
        """Every slot."""
        return torch.arange(pinned.numel(), device=pinned.device)


@dataclass(frozen=True, slots=True)
class RecencyPolicy:
    """`recency`: pinned slots and, among the others, the latest (StreamingLLM, arXiv 2309.17453)."""

    name: str = "recency"

    def keep(self, pinned: Tensor, budget_tokens: int) -> Tensor:
        """Pinned slots, then the latest."""
        free = (~pinned).nonzero().flatten()
        count = budget_tokens - int(pinned.sum())
        latest = free[free.numel() - count :]
        return torch.cat((pinned.nonzero().flatten(), latest)).sort().values


_POLICIES: dict[str, Callable[[], Policy]] = {"full": FullPolicy, "recency": RecencyPolicy}


def parse_policy(text: str, budget_tokens: int | None) -> Policy:
    """The policy that `text` names.

    Raises:
        ConfigError: unknown policy, or a budget that does not fit the policy.
    """
    if text not in _POLICIES:
        raise ConfigError(f"unknown policy '{text}': expected one of {', '.join(_POLICIES)}")
    if text == "full" and budget_tokens is not None:
        evicting = [name for name in _POLICIES if name != "full"]
        raise ConfigError(f"policy 'full' keeps every token; with --budget use --policy {' or '.join(evicting)}")
    if text != "full" and (budget_tokens is None or budget_tokens < 1):
        raise ConfigError(f"policy '{text}' needs --budget, a number of tokens of at least 1; got {budget_tokens}")
    return _POLICIES[text]()


def evict(cache: KVCache, policy: Policy, budget_tokens: int | None, pinned_head: int, pinned_tail: int) -> int:
    """Bring `cache` down to the budget.

    Args:
        cache: linked KV of N slots, changed in place.
        policy: chooses.
        budget_tokens: slots that may stay; None: all.
        pinned_head: so many first slots stay (the prompt's prefix).
        pinned_tail: so many last slots stay (the question).

    Returns:
        Slots kept. Pinned slots stay even where they alone exceed the budget.
    """
    if budget_tokens is None or budget_tokens >= cache.length:
        return cache.length
    pinned = torch.zeros(cache.length, dtype=torch.bool, device=cache.keys.device)
    pinned[:pinned_head] = True
    pinned[cache.length - pinned_tail :] = True
    cache.keep(policy.keep(pinned, max(budget_tokens, int(pinned.sum()))))
    return cache.length
