from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny

from epic_rag.decode import DecodeOptions, decode
from epic_rag.errors import ConfigError
from epic_rag.evict import POLICIES, RoCo, SlotScores, evict, parse_policy, prefill_ranges
from epic_rag.kv_cache import KVCache


def numbered_cache(num_tokens: int) -> KVCache:
    """A cache whose slot i holds the number i everywhere."""
    cache = KVCache((2, 2, num_tokens + 4, 8), torch.float32, torch.device("cpu"))
    cache.keys[:, :, :num_tokens] = torch.arange(num_tokens)[None, None, :, None]
    cache.values.copy_(cache.keys)
    cache.advance(num_tokens)
    return cache


def random_scores(num_tokens: int) -> SlotScores:
    scores = SlotScores(2, 2, num_tokens + 4)
    for layer in range(2):
        rows = torch.rand(2, 12, num_tokens, generator=torch.Generator().manual_seed(layer))
        scores.observe(layer, rows.sum(1), rows.square().sum(1), torch.full((num_tokens,), 12), rows[:, -1])
    return scores


def test_recency_keeps_pinned_and_latest_exactly_to_the_budget() -> None:
    cache = numbered_cache(20)
    kept = evict(cache, parse_policy("recency", 9), 9, pinned_head=3, pinned_tail=2)
    assert kept == cache.length == 9
    assert cache.keys[1, 0, :9, 0].tolist() == [0, 1, 2, 14, 15, 16, 17, 18, 19]
    assert torch.equal(cache.keys[:, :, :9], cache.values[:, :, :9])
    assert cache.next_position == 20, "positions are never renumbered"


@pytest.mark.parametrize(("budget", "kept"), [(1, 5), (5, 5), (6, 6), (19, 19), (20, 20), (100, 20)])
def test_budgets_are_exact_down_to_what_is_pinned(budget: int, kept: int) -> None:
    assert evict(numbered_cache(20), parse_policy("recency", budget), budget, 3, 2) == kept


def test_full_keeps_everything() -> None:
    assert evict(numbered_cache(20), parse_policy("full", None), None, 3, 2) == 20


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "full"])
@pytest.mark.parametrize(("budget", "kept"), [(1, 5), (6, 6), (19, 19), (20, 20), (100, 20)])
def test_every_policy_keeps_to_the_budget_in_every_layer_and_head(name: str, budget: int, kept: int) -> None:
    cache, scores = numbered_cache(20), random_scores(20)
    assert evict(cache, parse_policy(name, budget), budget, 3, 2, scores) == kept
    assert cache.length == scores.length == kept
    assert torch.equal(cache.keys[:, :, :kept, 0], scores.positions[:, :, :kept].float()), "kept in step"
    assert torch.equal(scores.positions[:, :, :3], torch.arange(3, dtype=torch.int32).expand(2, 2, 3))
    assert scores.positions[:, :, kept - 2 : kept].unique().tolist() == [18, 19]


def test_heads_keep_their_own_tokens_or_a_layers() -> None:
    kept = {}
    for granularity in ("head", "layer"):
        cache, scores = numbered_cache(20), random_scores(20)
        evict(cache, RoCo(granularity=granularity), 10, 0, 0, scores)
        kept[granularity] = cache.keys[:, :, :10, 0]
    assert len({tuple(row) for row in kept["head"].flatten(0, 1).tolist()}) == 4
    assert torch.equal(kept["layer"][:, 0], kept["layer"][:, 1])
    assert not torch.equal(kept["layer"][0], kept["layer"][1])


def test_the_highest_mean_stays() -> None:
    cache, scores = numbered_cache(20), SlotScores(2, 2, 24)
    rows = torch.full((2, 1, 20), 0.01)
    rows[0, 0, 7], rows[1, 0, 9] = 0.5, 0.4
    for layer in range(2):
        scores.observe(layer, rows.sum(1), rows.square().sum(1), torch.ones(20), rows[:, -1])
    evict(cache, RoCo("head"), 2, 0, 0, scores)  # half of the places are a sink's
    assert cache.keys[1, :, :2, 0].tolist() == [[0, 7], [0, 9]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy 'roco:head' needs attention scores"):
        evict(numbered_cache(20), RoCo("head"), 10, 0, 0)
    with pytest.raises(ValueError, match="scores of 19 slots do not belong to a cache of 20"):
        evict(numbered_cache(20), RoCo("head"), 10, 0, 0, random_scores(19))


@given(st.integers(0, 60), st.integers(1, 70), st.integers(1, 70))
def test_prefill_ranges_are_consecutive_and_fit(num_tokens: int, budget: int, stride: int) -> None:
    ranges = list(prefill_ranges(num_tokens, budget, stride))
    assert [token for part in ranges for token in part] == list(range(num_tokens))
    assert all(0 < len(part) <= (budget + stride if i == 0 else stride) for i, part in enumerate(ranges))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "full"])
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.sampled_from([1, 2, 7, 50]))
def test_prefill_in_chunks_is_exact_and_bounded(name: str, num_tokens: int, budget: int, stride: int) -> None:
    """Also for prompts shorter than the budget, a budget of 1, and a stride longer than the prompt."""
    policy = parse_policy(name, budget)
    room = min(budget + stride, num_tokens)
    cache = KVCache((2, 2, room, 4), torch.float32, torch.device("cpu"))
    scores = SlotScores.of_cache(cache)
    for part in prefill_ranges(num_tokens, budget, stride):
        start = cache.length
        scores.append(len(part), part.start)
        rows = torch.arange(part.start, part.stop).float()[None, :, None].expand(2, -1, 4)
        for layer in range(2):
            cache.write(layer, torch.arange(start, start + len(part)), rows, rows)
            attention = torch.rand(2, len(part), start + len(part))
            counts = torch.full((start + len(part),), len(part))
            scores.observe(layer, attention.sum(1), attention.square().sum(1), counts, attention[:, -1])
        cache.advance(start + len(part))
        assert evict(cache, policy, budget, 0, 0, scores) == min(budget, part.stop)
        assert torch.equal(cache.keys[:, :, : cache.length, 0], scores.positions[:, :, : cache.length].float())


def test_decoding_goes_on_at_the_true_position_after_eviction() -> None:
    """Evicting nothing visible changes nothing; evicting something changes the next logits."""
    model, prompt = make_tiny("llama"), list(range(40, 80))
    model.eos_ids = frozenset()

    def answer(budget: int | None) -> str:
        cache = model.new_cache(len(prompt) + 8)
        logits = model.forward(model.ids(prompt), model.positions(0, len(prompt)), cache)[-1]
        evict(cache, parse_policy("recency" if budget else "full", budget), budget, 4, 4)
        text = "".join(piece.text for piece in decode(model, cache, logits, DecodeOptions(max_tokens=8)))
        assert cache.next_position == len(prompt) + 7
        return text

    assert answer(40) == answer(None)
    assert answer(9) != answer(None)
