"""Decoding under a constant size: each new token takes the slot of one that is given up."""

from __future__ import annotations

from torch import Tensor

from epic_rag.evict.ranking import Policy
from epic_rag.evict.scores import SlotScores
from epic_rag.evict.stage import pin, ungroup, view_for
from epic_rag.kv_cache import KVCache


class SlotKeeper:
    """Finds the slot of each new token in a cache that never holds more than its budget.

    Once the cache is full, every layer and head names the slot it gives up, and the new token overwrites it there:
    nothing moves, and no slot is ever added. Slots are then no longer in the order of positions, which attention does
    not mind: keys carry their rotation, and a decoded token sees every slot.

    Attributes:
        budget_tokens: slots the cache may hold.
    """

    def __init__(
        self,
        cache: KVCache,
        scores: SlotScores,
        policy: Policy,
        budget_tokens: int,
        pinned_head: int = 0,
        pinned_tail: int = 0,
        *,
        trims: bool = False,
    ) -> None:
        """Take over a cache after the stage evict.

        Args:
            cache: KV of N slots.
            scores: statistics of the same slots, to be told what decoded rows attend to.
            policy: chooses.
            budget_tokens: slots the cache may hold; where pinned slots alone fill it, one more than they are.
            pinned_head: so many first slots stay.
            pinned_tail: so many of the N slots stay, counted from the end.
            trims: give the memory of slots beyond the budget back when the first token comes.

        Raises:
            ValueError: the scores are not of these slots, or the cache exceeds the budget or has no room for it.
        """
        if scores.length != cache.length:
            raise ValueError(f"scores of {scores.length} slots do not belong to a cache of {cache.length}")
        pinned = pin(cache.length, pinned_head, pinned_tail, cache.keys.device)
        self.budget_tokens = max(budget_tokens, int(pinned.sum()) + 1)
        if cache.length > self.budget_tokens:
            raise ValueError(f"a cache of {cache.length} slots exceeds the budget of {self.budget_tokens}: evict first")
        room = min(cache.capacity, scores.capacity)
        if self.budget_tokens > room:
            raise ValueError(f"a budget of {self.budget_tokens} slots does not fit a cache with room for {room}")
        self._cache, self._scores, self._policy = cache, scores, policy
        self._pinned = pin(self.budget_tokens, pinned_head, 0, cache.keys.device)
        self._pinned[: cache.length] |= pinned
        self._trims = trims

    @property
    def sink(self) -> SlotScores | None:
        """Who is to be told what decoded rows attend to; None where the policy does not ask."""
        return self._scores if self._policy.needs_scores else None

    def next_slot(self) -> int:
        """Make room for the token at `cache.next_position`.

        Returns:
            The slot to name to the model's forward; in a full cache the last one, whose row sees all slots, while the
            token is written where each layer and head has made room.
        """
        if self._trims:
            self._cache.trim(self.budget_tokens)
            self._scores.trim(self.budget_tokens)
            self._trims = False
        position = self._cache.next_position
        if self._cache.length < self.budget_tokens:
            self._scores.append(1, position)
            return self._cache.length
        slots = self._give_up()
        self._scores.overwrite(slots, position)
        self._cache.redirect(slots)
        return self.budget_tokens - 1

    def _give_up(self) -> Tensor:
        view = view_for(self._policy, self._scores, is_decoding=True)
        given_up = ungroup(self._policy.give_up(view, self._pinned), self._policy, self._scores)
        return given_up.expand(self._scores.sums.shape[:2]).contiguous()
