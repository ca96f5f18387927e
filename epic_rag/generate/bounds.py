"""The sizes a cache goes through in each mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many slots one sequence may hold, and when.

    Attributes:
        prompt_tokens: slots that stay after each chunk of the prompt; None: all, it never exceeds them.
        total_tokens: slots that the cache may hold while decoding; None: it grows, and never exceeds them.
        pinned_tokens: so many first slots always stay.
        capacity: slots to reserve; all of them are used if the answer is as long as it may be.
    """

    prompt_tokens: int | None
    total_tokens: int | None
    pinned_tokens: int
    capacity: int

    @classmethod
    def of_prompt(cls, num_tokens: int, budget_tokens: int | None, stride_tokens: int) -> Self:
        """Sizes of a prompt of `num_tokens` under a budget (None: none), with no answer to come."""
        if budget_tokens is None or budget_tokens >= num_tokens:
            return cls(None, None, 0, num_tokens)
        return cls(budget_tokens, None, 0, min(num_tokens, budget_tokens + stride_tokens))

    @classmethod
    def of_mode(
        cls, mode: str, num_tokens: int, answer_tokens: int, budget_tokens: int | None, stride_tokens: int
    ) -> Self:
        """Sizes of a prompt and its answer.

        Args:
            mode: what the budget is for.
            num_tokens: tokens of the prompt.
            answer_tokens: tokens of the answer whose KV is needed, at most; its last one's is not.
            budget_tokens: slots; None: no budget.
            stride_tokens: tokens of a chunk.
        """
        if budget_tokens is None:
            return cls(None, None, 0, num_tokens + answer_tokens)
        if mode == "decoding":
            total = num_tokens + budget_tokens if answer_tokens > budget_tokens else None
            return cls(None, total, num_tokens, num_tokens + min(answer_tokens, budget_tokens))
        prompt = cls.of_prompt(num_tokens, budget_tokens, stride_tokens)
        if mode == "auto" and num_tokens + answer_tokens > budget_tokens:
            return cls(prompt.prompt_tokens, budget_tokens, 0, max(prompt.capacity, budget_tokens))
        kept = min(num_tokens, budget_tokens)
        return cls(prompt.prompt_tokens, None, 0, max(prompt.capacity, kept + answer_tokens))
