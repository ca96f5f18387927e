from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.decode import DecodeOptions, decode
from epic_rag.errors import ConfigError
from epic_rag.evict import evict, parse_policy
from epic_rag.kv_cache import KVCache


def numbered_cache(num_tokens: int) -> KVCache:
    """A cache whose slot i holds the number i everywhere."""
    cache = KVCache((2, 2, num_tokens + 4, 8), torch.float32, torch.device("cpu"))
    cache.keys[:, :, :num_tokens] = torch.arange(num_tokens)[None, None, :, None]
    cache.values.copy_(cache.keys)
    cache.advance(num_tokens)
    return cache


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


@pytest.mark.parametrize(("policy", "budget"), [("full", 10), ("recency", None), ("recency", 0), ("roko", 10)])
def test_policies_and_budgets_that_do_not_fit_are_refused(policy: str, budget: int | None) -> None:
    with pytest.raises(ConfigError, match=r"--policy|--budget|expected one of"):
        parse_policy(policy, budget)


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
