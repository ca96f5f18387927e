from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny

from epic_rag.evict import POLICIES, Policy, Recency, RoCo, SlotKeeper, SlotScores, SlotView, evict, parse_policy
from epic_rag.kv_cache import KVCache

EVICTING = [name for name in POLICIES if name != "full"]
SHAPE = (2, 3)


class Prompt:
    """A cache of numbers: the KV of the token at position p is p, and what it receives depends on p and the query."""

    def __init__(self, num_tokens: int, capacity: int) -> None:
        self.cache = KVCache((*SHAPE, capacity, 2), torch.float32, torch.device("cpu"))
        self.scores = SlotScores(*SHAPE, capacity)
        for position in range(num_tokens):
            self.scores.append(1, position)
            self.forward(position)

    def forward(self, slot: int) -> None:
        """As a model's forward of one row would: write it, observe every slot in use, advance."""
        position = self.cache.next_position
        for layer in range(SHAPE[0]):
            row = torch.full((SHAPE[1], 1, 2), float(position))
            self.cache.write(layer, torch.tensor([slot]), row, row)
            positions = self.scores.positions[layer, :, : slot + 1]
            salt = torch.arange(SHAPE[1])[:, None] * 31 + layer * 7 + position * 13
            seen = ((positions * 7919 + salt * 104729) % 1009) / 1009.0
            self.scores.observe(layer, seen, seen.square(), torch.ones(slot + 1), seen)
        self.cache.advance(slot + 1)
        self.cache.next_position = position + 1

    def held(self) -> torch.Tensor:
        """Positions in the cache, sorted, `[L, H, N]`."""
        return self.cache.keys[:, :, : self.cache.length, 0].sort(-1).values.int()


def compact(cache: KVCache, scores: SlotScores, policy: Policy, pinned: list[int]) -> None:
    """Give one slot up in every layer and head and close up; `pinned`: positions that stay."""
    num_layers, view, kept = cache.keys.shape[0], scores.view(policy.granularity, is_decoding=True), []
    for group in range(view.positions.shape[0]):
        names = ("positions", "sums", "squares", "counts", "last")
        alone = replace(view, **{name: getattr(view, name)[group : group + 1] for name in names})
        stays = torch.isin(alone.positions[0], torch.tensor(pinned))
        kept.append(policy.keep(alone, stays, cache.length - 1))
    by_layer = torch.stack(kept).view(num_layers, len(kept) // num_layers, cache.length - 1)
    cache.keep(by_layer)
    scores.keep(by_layer)


@pytest.mark.parametrize("name", EVICTING)
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 5), st.integers(0, 5))
def test_overwriting_is_compacting(name: str, num_tokens: int, budget: int, head: int, tail: int) -> None:
    """The same tokens stay as when the cache closes up before each token and grows by one; the size never changes."""
    policy = parse_policy(name, budget)
    head, tail = min(head, num_tokens), min(tail, num_tokens)
    ours, twin = Prompt(num_tokens, 80), Prompt(num_tokens, 80)
    for prompt in (ours, twin):
        evict(prompt.cache, policy, budget, head, tail, prompt.scores)
    keeper = SlotKeeper(ours.cache, ours.scores, policy, budget, head, tail)
    pinned = sorted({*range(head), *range(num_tokens - tail, num_tokens)})
    for step in range(25):
        ours.forward(keeper.next_slot())
        if twin.cache.length == keeper.budget_tokens:
            compact(twin.cache, twin.scores, policy, pinned)
        twin.scores.append(1, twin.cache.next_position)
        twin.forward(twin.cache.length)
        assert torch.equal(ours.held(), twin.held())
        assert torch.equal(ours.scores.positions[:, :, : ours.cache.length].sort(-1).values, ours.held())
        assert ours.cache.length == min(keeper.budget_tokens, twin.cache.length)
        assert ours.cache.next_position == num_tokens + step + 1
    assert keeper.budget_tokens == max(budget, len(pinned) + 1)
    for position in pinned:
        assert (ours.held() == position).any(-1).all(), "pinned tokens stay"


@pytest.mark.parametrize("name", EVICTING)
def test_a_budget_of_one_holds_the_token_just_decoded(name: str) -> None:
    prompt = Prompt(1, 1)
    keeper = SlotKeeper(prompt.cache, prompt.scores, parse_policy(name, 1), 1)
    for position in range(1, 6):
        prompt.forward(keeper.next_slot())
        assert prompt.held().unique().tolist() == [position]


def test_a_policy_is_told_that_a_token_is_decoded() -> None:
    told = []

    class Spy(Recency):
        def worth(self, view: SlotView, pinned: torch.Tensor, free_tokens: int) -> torch.Tensor:
            told.append((view.is_decoding, free_tokens))
            return super().worth(view, pinned, free_tokens)

    prompt = Prompt(6, 6)
    evict(prompt.cache, Spy(), 5, 1, 0, prompt.scores)
    SlotKeeper(prompt.cache, prompt.scores, Spy(), 5, pinned_head=1).next_slot()
    assert told == [(False, 4), (True, 3)]


def test_pinned_slots_that_fill_the_budget_leave_one_slot_for_the_answer() -> None:
    prompt = Prompt(6, 7)
    keeper = SlotKeeper(prompt.cache, prompt.scores, RoCo("head"), 4, pinned_head=4, pinned_tail=2)
    assert keeper.budget_tokens == 7
    for position in range(6, 10):
        prompt.forward(keeper.next_slot())
        assert prompt.held()[1, 2].tolist() == [*range(6), position]


def test_what_does_not_fit_is_refused() -> None:
    prompt = Prompt(6, 10)
    with pytest.raises(ValueError, match="a cache of 6 slots exceeds the budget of 5: evict first"):
        SlotKeeper(prompt.cache, prompt.scores, RoCo("head"), 5)
    with pytest.raises(ValueError, match="11 slots does not fit a cache with room for 10"):
        SlotKeeper(prompt.cache, prompt.scores, RoCo("head"), 11)
    with pytest.raises(ValueError, match="scores of 0 slots do not belong to a cache of 6"):
        SlotKeeper(prompt.cache, SlotScores(*SHAPE, 10), RoCo("head"), 6)


@pytest.mark.parametrize("policy", [Recency(), RoCo("head"), RoCo(granularity="layer")], ids=lambda p: p.name)
def test_a_model_decodes_in_overwritten_slots_as_in_compacted_ones(policy: Policy) -> None:
    model, prompt = make_tiny("llama"), list(range(40, 80))

    def logits(*, overwrites: bool) -> list[torch.Tensor]:
        cache = model.new_cache(len(prompt) + 20)
        scores = SlotScores.of_cache(cache)
        model.forward(model.ids(prompt), model.positions(0, len(prompt)), cache, scores=scores)
        evict(cache, policy, 16, 2, 2, scores)
        keeper = SlotKeeper(cache, scores, policy, 16, 2, 2)
        steps = []
        for token in range(100, 112):
            position = cache.next_position
            if overwrites:
                slot = keeper.next_slot()
            else:
                compact(cache, scores, policy, [0, 1, 38, 39])
                scores.append(1, position)
                slot = 15
            ids, slots = model.ids([token]), model.positions(slot, slot + 1)
            steps.append(model.forward(ids, model.positions(position, position + 1), cache, slots=slots, scores=scores))
            assert cache.length == 16
        return steps

    for ours, compacted in zip(logits(overwrites=True), logits(overwrites=False), strict=True):
        torch.testing.assert_close(ours, compacted, rtol=1e-4, atol=1e-4)
