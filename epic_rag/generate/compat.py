"""EasyKV's three modes on a real model: the decisions and sizes of `epic_rag.evict.easykv`, in all layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epic_rag.evict import KVBudget, SlotScores
from epic_rag.evict.easykv import PrefillPlan, give_up, plan_prefill
from epic_rag.evict.roco import DECODE_SHARE, PROMPT_SHARE, SINK_TOKENS
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel


class EasyKV:
    """The KV of one sequence as EasyKV would hold it; see `BoundedKV` for what is exact instead.

    Attributes:
        cache: keys and values.
        peak_slots: most slots in use so far.
    """

    def __init__(
        self,
        model: LanguageModel,
        num_tokens: int,
        answer_tokens: int,
        budget: KVBudget,
        mode: str,
        stride_tokens: int,
    ) -> None:
        """Plan the sizes and reserve the room.

        Args:
            model: the language model.
            num_tokens: tokens of the prompt.
            answer_tokens: tokens of the answer whose KV is needed, at most.
            budget: its ratio is one of the prompt's tokens.
            mode: what the budget is for.
            stride_tokens: tokens of a chunk.

        Raises:
            ConfigError: EasyKV cannot prefill so many tokens with this budget and stride.
        """
        budget_tokens = budget.resolve(num_tokens, model.kv_bytes_per_token)
        self._model, self._num_tokens = model, num_tokens
        self._plan: PrefillPlan | None = None
        self._start = 0
        """First slot that is scored and can be given up."""
        if mode == "decoding" or (mode == "auto" and budget_tokens > num_tokens):
            self._start = num_tokens
            limit = final = budget_tokens if mode == "decoding" else budget_tokens - num_tokens
            prompt_peak, total = num_tokens, num_tokens + min(answer_tokens, final + 1)
        else:
            as_given = budget_tokens if budget.ratio is None else budget.ratio
            plan = plan_prefill(num_tokens, as_given, stride_tokens, is_auto=mode == "auto")
            self._plan, limit, final = plan, plan.limit_tokens, plan.final_tokens
            kept = min(num_tokens, final)
            prompt_peak = num_tokens if final >= num_tokens else final + stride_tokens
            total = kept + answer_tokens if mode == "encoding" else min(kept + answer_tokens, final + 1)
        self._scope = limit - int(limit * DECODE_SHARE)
        self._answer_limit = None if mode == "encoding" else final
        self.cache = model.new_cache(max(prompt_peak, total))
        self._scores = _Scores(model, self.cache, self._start)
        self.peak_slots = 0

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        """Take a whole prompt; logits `[vocabulary]` fp32 of its last token."""
        plan = self._plan
        if plan is None:
            return self._extend(token_ids, observes=False)
        scope = max(plan.limit_tokens - int(plan.limit_tokens * PROMPT_SHARE) - SINK_TOKENS, plan.stride_tokens)
        logits = torch.empty(0)
        if plan.first_tokens:
            logits = self._extend(token_ids[: plan.first_tokens], observes=False)
        for start in range(plan.first_tokens, len(token_ids), plan.stride_tokens):
            exceeds = self.cache.length + plan.stride_tokens > plan.final_tokens
            logits = self._extend(token_ids[start : start + plan.stride_tokens], observes=exceeds)
            if exceeds:
                self._scores.evict(self.cache, scope, plan.stride_tokens, SINK_TOKENS)
        return logits

    def step(self, token: int) -> Tensor:
        """Take a token of the answer, then evict one where the answer's limit is exceeded; logits `[vocabulary]`."""
        logits = self._extend([token], observes=self._answer_limit is not None)
        if self._answer_limit is not None and self.cache.length - self._start > self._answer_limit:
            self._scores.evict(self.cache, self._scope, 1)
        return logits

    def _extend(self, token_ids: Sequence[int], *, observes: bool) -> Tensor:
        model, count = self._model, len(token_ids)
        position, slot = self.cache.next_position, self.cache.length
        self._scores.append(slot, count, position)
        logits = model.forward(
            model.ids(list(token_ids)),
            model.positions(position, position + count),
            self.cache,
            slots=model.positions(slot, slot + count),
            scores=self._scores if observes else None,
        )
        self.peak_slots = max(self.peak_slots, self.cache.length)
        return logits[-1]


class _Scores:
    """Statistics of the slots from `start` on: a score sink that tells of no other."""

    def __init__(self, model: LanguageModel, cache: KVCache, start: int) -> None:
        self.start = start
        capacity = max(cache.capacity - start, 0)
        self._scores = SlotScores(model.num_layers, model.num_kv_heads, capacity, cache.keys.device)

    def append(self, slot: int, num_slots: int, position: int) -> None:
        if slot >= self.start:
            self._scores.append(num_slots, position)

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        self._scores.observe(layer, sums, squares, counts, last, start - self.start)

    def evict(self, cache: KVCache, scope_tokens: int, count: int, sink_tokens: int = 0) -> None:
        """Drop `count` slots in every layer and head; the others close up."""
        view = self._scores.view("head")
        gone = give_up(view, scope_tokens, count, sink_tokens)
        stays = torch.ones_like(view.positions, dtype=torch.bool).scatter(-1, gone, False)
        kept = stays.nonzero()[:, 1].view(*self._scores.sums.shape[:2], -1)
        self._scores.keep(kept)
        first = torch.arange(self.start, device=kept.device).expand(*kept.shape[:2], -1)
        cache.keep(torch.cat((first, kept + self.start), dim=-1))
