"""The KV of one sequence, kept within its bounds while tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epic_rag.evict import Policy, SlotKeeper, SlotScores, evict, prefill_ranges
from epic_rag.generate.bounds import Bounds
from epic_rag.model import LanguageModel


class BoundedKV:
    """Prefills chunk by chunk and decodes token by token; evicts so that no slot beyond the bounds is ever in use.

    Positions stay the true ones: keys keep the rotation of the place where their token stood. Attention statistics are
    collected only while a policy will read them.

    Attributes:
        cache: keys and values.
        peak_slots: most slots in use so far.
    """

    def __init__(self, model: LanguageModel, bounds: Bounds, policy: Policy, stride_tokens: int) -> None:
        """Reserve the room that the bounds name, and no more."""
        self.cache = model.new_cache(bounds.capacity)
        self.peak_slots = 0
        self._model, self._bounds, self._policy, self._stride_tokens = model, bounds, policy, stride_tokens
        evicts = bounds.prompt_tokens is not None or bounds.total_tokens is not None
        self._scores = SlotScores.of_cache(self.cache) if evicts else None
        self._observes = evicts and policy.needs_scores and not bounds.pinned_tokens
        self._keeper: SlotKeeper | None = None

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        """Take a whole prompt; logits `[vocabulary]` fp32 of its last token."""
        limit = self._bounds.prompt_tokens
        ranges = prefill_ranges(len(token_ids), len(token_ids) if limit is None else limit, self._stride_tokens)
        logits = torch.empty(0)
        for part in ranges:
            logits = self.extend(token_ids[part.start : part.stop])[-1]
        if self._bounds.total_tokens is None:
            self._scores = None  # nothing is evicted from here on
        return logits

    def extend(self, token_ids: Sequence[int], logits_to_keep: int = 1) -> Tensor:
        """Take a chunk of the prompt and evict down to what may stay; logits `[logits_to_keep, vocabulary]` fp32."""
        position, slot, count = self.cache.next_position, self.cache.length, len(token_ids)
        if self._scores is not None:
            self._scores.append(count, position)
        logits = self._forward(token_ids, position, slot, logits_to_keep)
        if self._bounds.prompt_tokens is not None:
            evict(self.cache, self._policy, self._bounds.prompt_tokens, 0, 0, self._scores)
        return logits

    def step(self, token: int) -> Tensor:
        """Take a token of the answer, in the slot of another where there is no room; logits `[vocabulary]` fp32."""
        if self._keeper is None and self._scores is not None and self._bounds.total_tokens is not None:
            self._keeper = self._begin_answer(self._scores, self._bounds.total_tokens)
        slot = self.cache.length if self._keeper is None else self._keeper.next_slot()
        return self._forward([token], self.cache.next_position, slot, 1)[-1]

    def _begin_answer(self, scores: SlotScores, total_tokens: int) -> SlotKeeper:
        scores.start = self._bounds.pinned_tokens  # what pinned slots receive does not matter
        self._observes = self._policy.needs_scores
        return SlotKeeper(self.cache, scores, self._policy, total_tokens, self._bounds.pinned_tokens)

    def _forward(self, token_ids: Sequence[int], position: int, slot: int, logits_to_keep: int) -> Tensor:
        model, count = self._model, len(token_ids)
        logits = model.forward(
            model.ids(list(token_ids)),
            model.positions(position, position + count),
            self.cache,
            slots=model.positions(slot, slot + count),
            logits_to_keep=logits_to_keep,
            scores=self._scores if self._observes else None,
        )
        self.peak_slots = max(self.peak_slots, slot + count)
        return logits
