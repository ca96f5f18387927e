"""EasyKV's decisions on a real forward: what stays is what explicit histories say, step by step."""

from __future__ import annotations

import evict_oracle as oracle
import numpy as np
import pytest
import torch
from tiny_models import SIZE, make_hf, make_tokenizer

from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget
from epic_rag.generate.compat import EasyKV
from epic_rag.model import LanguageModel

NUM_HEADS = SIZE["num_key_value_heads"]
NUM_TOKENS = 120
IDS = torch.randint(3, 250, (NUM_TOKENS,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(scope="module")
def one_layer() -> LanguageModel:
    """With one layer, what was evicted does not change the attention logits of later tokens."""
    return LanguageModel(make_hf("llama", num_hidden_layers=1), make_tokenizer(), "tiny", "of one layer")


@pytest.fixture(scope="module")
def logits(one_layer: LanguageModel) -> np.ndarray:
    """Attention logits of all tokens, `[H, G, n, n]`, from transformers' eager attention."""
    model = one_layer.hf_model
    used = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(torch.tensor([IDS]), output_attentions=True).attentions[0][0]
    model.set_attn_implementation(used)
    return np.log(weights.unflatten(0, (NUM_HEADS, -1)).double().clamp_min(1e-30).numpy())


def held(kv: EasyKV) -> list[list[int]]:
    """Positions that can be given up and are in the cache, by head."""
    scores = kv._scores._scores
    return scores.positions[0, :, : scores.length].tolist()


def without(gone: list[list[int]], stop: int, start: int = 0) -> list[int]:
    dropped = {token for step in gone for token in step}
    return [token for token in range(start, stop) if token not in dropped]


@pytest.mark.parametrize(("num_tokens", "budget", "stride"), [(96, 40, 8), (96, 0.5, 8), (100, 0.5, 24), (90, 34, 7)])
@pytest.mark.parametrize("mode", ["encoding", "auto"])
def test_the_prompt_keeps_what_the_reference_keeps(
    one_layer: LanguageModel, logits: np.ndarray, num_tokens: int, budget: float, stride: int, mode: str
) -> None:
    given = KVBudget(ratio=budget) if isinstance(budget, float) else KVBudget(tokens=budget)
    kv = EasyKV(one_layer, num_tokens, 12, given, mode, stride)
    kv.prefill(IDS[:num_tokens])
    _, final = oracle.sizes(num_tokens, budget, stride)
    first = final - stride if mode == "encoding" else (final - 1) % stride + 1
    rows = oracle.LogitRows(logits)
    expected = [
        oracle.prefilled(rows, head, num_tokens, budget, stride, first=first, kept=False, stop=num_tokens + 12)
        for head in range(NUM_HEADS)
    ]
    chunks = (num_tokens - final) // stride
    assert held(kv) == [without(gone[:chunks], num_tokens) for gone in expected]
    for step, token in enumerate(IDS[num_tokens : num_tokens + 12], 1):
        kv.step(token)
        if mode == "auto":
            assert held(kv) == [without(gone[: chunks + step], num_tokens + step) for gone in expected]
        else:
            assert kv.cache.length == final + step, "the answer comes on top"
    assert kv.peak_slots == kv.cache.capacity


@pytest.mark.parametrize(("mode", "budget"), [("decoding", 34), ("decoding", 40), ("auto", 64)])
def test_the_answer_keeps_what_the_reference_keeps(
    one_layer: LanguageModel, logits: np.ndarray, mode: str, budget: int
) -> None:
    start, limit = 24, budget if mode == "decoding" else budget - 24
    kv = EasyKV(one_layer, start, NUM_TOKENS - start, KVBudget(tokens=budget), mode, 8)
    kv.prefill(IDS[:start])
    rows = oracle.LogitRows(logits, prompt=start)
    expected = [oracle.decoded(rows, head, start, NUM_TOKENS, limit) for head in range(NUM_HEADS)]
    for token in range(start, NUM_TOKENS):
        kv.step(IDS[token])
        drops = max(token + 1 - start - limit, 0)
        assert held(kv) == [without(gone[:drops], token + 1, start) for gone in expected]
    assert kv.cache.length == start + limit
    assert kv.peak_slots == kv.cache.capacity == start + limit + 1


def test_what_stays_is_what_is_attended(one_layer: LanguageModel) -> None:
    """Keys in the cache are those of the positions that the books name."""
    plain = one_layer.new_cache(NUM_TOKENS)
    one_layer.forward(one_layer.ids(IDS), one_layer.positions(0, NUM_TOKENS), plain)
    kv = EasyKV(one_layer, 96, 24, KVBudget(tokens=40), "auto", 8)
    kv.prefill(IDS[:96])
    for token in IDS[96:]:
        kv.step(token)
    for head, positions in enumerate(held(kv)):
        torch.testing.assert_close(kv.cache.keys[0, head, : kv.cache.length], plain.keys[0, head, positions])


def test_what_the_reference_cannot_do_is_refused(one_layer: LanguageModel) -> None:
    with pytest.raises(ConfigError, match=r"EasyKV cannot prefill 100 tokens .* give a budget of at least one stride"):
        EasyKV(one_layer, 100, 4, KVBudget(tokens=3), "encoding", 24)
