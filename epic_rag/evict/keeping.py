"""The budget of one question: scores while linking, one eviction, and a cache that keeps its size while decoding."""

from __future__ import annotations

from epic_rag.evict.budget import KVBudget
from epic_rag.evict.decode_cache import SlotKeeper
from epic_rag.evict.ranking import Policy
from epic_rag.evict.roco import RoCo
from epic_rag.evict.scores import SlotScores
from epic_rag.evict.stage import evict
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel
from epic_rag.model.score_sink import ScoreSink
from epic_rag.prompt import Prompt


class RowsOnly:
    """A sink that hides that it could be seeded: only rows of the linked prompt count."""

    start = 0

    def __init__(self, scores: SlotScores) -> None:
        self.observe = scores.observe


class Keeping:
    """What stays of one prompt's KV.

    Attributes:
        sink: told what attention the slots receive while the prompt is linked; None where nobody needs to know.
        keeper: finds the slots of the answer's tokens; None where there is no limit, and until `evict`.
        budget_tokens: slots that may stay; None: all.
    """

    def __init__(
        self, model: LanguageModel, prompt: Prompt, policy: Policy, budget: KVBudget | None, answer_tokens: int
    ) -> None:
        """Prepare.

        Args:
            model: the language model.
            prompt: what is linked.
            policy: chooses.
            budget: what may stay; None: all.
            answer_tokens: tokens of the answer, at most; a budget that holds them too evicts nothing.

        Raises:
            ConfigError: a budget in bytes that holds no token.
        """
        self.budget_tokens = None if budget is None else budget.resolve(prompt.num_tokens, model.kv_bytes_per_token)
        self.sink: ScoreSink | None = None
        self.keeper: SlotKeeper | None = None
        self._policy = policy
        self._scores: SlotScores | None = None
        self._pinned = prompt.num_pinned, len(prompt.suffix_ids)
        room = prompt.num_tokens + answer_tokens
        if self.budget_tokens is not None and self.budget_tokens < room and policy.needs_scores:
            self._scores = SlotScores(model.num_layers, model.num_kv_heads, room, model.device)
            self.sink = self._scores if isinstance(policy, RoCo) and policy.seeded else RowsOnly(self._scores)

    @property
    def pinned_tokens(self) -> int:
        """Tokens that stay whatever the budget: the prompt's prefix and the question."""
        return sum(self._pinned)

    def evict(self, cache: KVCache) -> int:
        """Bring a linked prompt down to the budget; returns the slots kept.

        The memory of what went is given back when the answer's second token comes, so that the first need not wait.
        """
        if self.budget_tokens is None or self.budget_tokens >= cache.capacity:
            return cache.length
        scores = self._scores or SlotScores.of_cache(cache)
        kept = evict(cache, self._policy, self.budget_tokens, *self._pinned, scores)
        self.keeper = SlotKeeper(cache, scores, self._policy, self.budget_tokens, *self._pinned, trims=True)
        return kept
