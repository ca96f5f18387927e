from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.evict import RoCo, SlotScores, evict
from epic_rag.kernels.attention_scores_ref import attention_scores_ref
from epic_rag.kernels.link_attention_ref import link_attention_ref
from epic_rag.kv_cache import KVCache
from epic_rag.model.budget_row import BudgetRow, Limits

LAYERS, HEADS, GROUP, DIM = 2, 2, 3, 8


@given(st.integers(0, 60), st.integers(1, 40), st.integers(1, 40), st.data())
def test_parts_are_consecutive_and_never_exceed_the_capacity(
    num_tokens: int, budget: int, stride: int, data: st.DataObject
) -> None:
    limits, used = Limits(RoCo("head"), budget, stride), data.draw(st.integers(0, budget))
    parts = list(limits.parts(used, num_tokens))
    assert [token for part in parts for token in part] == list(range(num_tokens))
    for part in parts:
        assert 0 < used + len(part) <= limits.capacity
        used = min(used + len(part), budget)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 9), st.integers(0, 999))
def test_a_layer_at_a_time_is_a_chunk_at_a_time(num_tokens: int, budget: int, stride: int, seed: int) -> None:
    """All chunks of a layer before the next layer, against the plain order with the references of both kernels."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, HEADS, num_tokens, DIM)
    queries = torch.randn(LAYERS, HEADS * GROUP, num_tokens, DIM, generator=generator)
    keys, values = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    limits = Limits(RoCo("head"), budget, stride)
    slots = torch.zeros(2, LAYERS, HEADS, limits.capacity, DIM)
    row, plans = BudgetRow(slots[0], slots[1], limits), {}
    ours = [row.prefill(i, queries[i], keys[i], values[i], 0.5, plans) for i in range(LAYERS)]
    row.finish_prefill()

    cache = KVCache((LAYERS, HEADS, limits.capacity, DIM), torch.float32, torch.device("cpu"))
    scores, expected = SlotScores(LAYERS, HEADS, limits.capacity), [[], []]
    for part in limits.parts(0, num_tokens):
        new = slice(part.start, part.stop)
        places = torch.arange(cache.length, cache.length + len(part))
        stop = int(places[-1]) + 1
        scores.append(len(part), part.start)
        for layer in range(LAYERS):
            cache.write(layer, places, keys[layer, :, new], values[layer, :, new])
            used = cache.keys[layer, :, :stop], cache.values[layer, :, :stop]
            expected[layer].append(link_attention_ref(queries[layer, :, new], *used, places, 0.5))
            sums, squares, last, counts = attention_scores_ref(queries[layer, :, new], used[0], places, 0.5)
            scores.observe(layer, sums, squares, counts, last)
        cache.advance(stop)
        evict(cache, RoCo("head"), budget, 0, 0, scores)
    for layer in range(LAYERS):
        torch.testing.assert_close(ours[layer], torch.cat(expected[layer], dim=1), atol=1e-5, rtol=1e-4)
    assert row.cache.length == cache.length == min(budget, num_tokens)
    assert row.cache.next_position == num_tokens
    assert torch.equal(row.cache.keys[:, :, : cache.length], cache.keys[:, :, : cache.length])
    torch.testing.assert_close(row.scores.sums, scores.sums)
