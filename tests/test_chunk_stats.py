"""What the encoder measures is the mean and the deviation of what the chunk's rows give to its tokens."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.chunk_stats import ChunkStatistics
from epic_rag.encode import Encoder
from epic_rag.encoding import exact_profile
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.uri import open_store


def ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def own_attention(case: str, token_ids: list[int], num_kv_heads: int) -> torch.Tensor:
    """Probabilities of transformers' own eager attention, query groups averaged: `[L, H, N, N]`."""
    model = make_tiny(case).hf_model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        layers = model(input_ids=torch.tensor([token_ids]), output_attentions=True, use_cache=False).attentions
    heads = torch.stack([layer[0] for layer in layers])
    return heads.view(heads.shape[0], num_kv_heads, -1, *heads.shape[2:]).mean(dim=2)


@pytest.mark.parametrize("case", ["llama", "phi", "cohere"])
@pytest.mark.parametrize("prefix", [0, 13])
def test_mean_and_population_deviation_over_the_rows_that_see_a_token(case: str, prefix: int) -> None:
    model, before, chunk = make_tiny(case), ids(prefix, 1), ids(90, 2)
    kv = Encoder(model, before, statistics=True).encode(chunk)
    assert kv.stats is not None
    assert kv.stats.shape == (2, model.num_kv_heads, 2, 90)
    rows = own_attention(case, before + chunk, model.num_kv_heads)[..., prefix:, prefix:]
    for token in range(90):
        seen = rows[..., token:, token]
        torch.testing.assert_close(kv.stats[:, :, 0, token].float(), seen.mean(dim=-1), atol=1e-5, rtol=2e-3)
        deviation = seen.std(dim=-1, correction=0)
        torch.testing.assert_close(kv.stats[:, :, 1, token].float(), deviation, atol=3e-4, rtol=2e-3)


def test_attention_that_goes_to_the_prefix_is_not_given_back() -> None:
    model = make_tiny("llama")
    received = []
    for prefix in ([], ids(200, 3)):
        stats = Encoder(model, prefix, statistics=True).encode(ids(50)).stats
        assert stats is not None
        counts = torch.arange(50, 0, -1)
        received.append(float((stats[0, :, 0].float() * counts).sum(dim=-1).mean()))
    assert received[0] == pytest.approx(50, rel=1e-2), "every row gives a whole 1"
    assert received[1] < 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_are_the_same_to_the_bit_without(dtype: torch.dtype) -> None:
    model, prefix, chunk = make_tiny("llama", dtype), ids(9), ids(70, 4)
    with_stats, without = Encoder(model, prefix, statistics=True).encode(chunk), Encoder(model, prefix).encode(chunk)
    assert without.stats is None
    assert with_stats.stats is not None
    assert torch.equal(with_stats.keys, without.keys)
    assert torch.equal(with_stats.values, without.values)


def test_a_chunk_of_one_token_has_no_deviation() -> None:
    stats = Encoder(make_tiny("llama"), (), statistics=True).encode([5]).stats
    assert stats is not None
    assert torch.equal(stats[:, :, 0], torch.ones(2, 2, 1, dtype=torch.float16))
    assert torch.equal(stats[:, :, 1], torch.zeros(2, 2, 1, dtype=torch.float16))


def test_a_constant_column_gives_no_nan() -> None:
    sink, third = ChunkStatistics(0), torch.full((1, 1), 1 / 3)
    sink.observe(0, third * 3000, third.square() * 3000 * (1 - 1e-6), torch.tensor([3000.0]), third)
    assert sink.finished().flatten().tolist() == [pytest.approx(1 / 3, rel=1e-3), 0.0]


def test_a_store_gives_back_what_was_measured() -> None:
    model, chunk = make_tiny("llama", torch.bfloat16), ids(40)
    kv, profile = Encoder(model, (), statistics=True).encode(chunk), exact_profile(model)
    key = chunk_key(profile, chunk)
    with open_store("memory://") as store:
        store.put(key, kv, profile=profile, encode_seconds=0.1)
        hit = store.get(key, chunk)
    assert hit is not None
    assert hit.kv.stats is not None
    assert kv.stats is not None
    assert torch.equal(hit.kv.stats, kv.stats)
