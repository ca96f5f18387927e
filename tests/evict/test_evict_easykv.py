"""The compatible mode drops, slot for slot, what explicit histories say."""

from __future__ import annotations

from pathlib import Path

import evict_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.errors import ConfigError
from epic_rag.evict.easykv import auto, decode, give_up, plan_prefill, prefill
from epic_rag.evict.view import SlotView
from epic_rag.model import LanguageModel

ROOT = Path(__file__).resolve().parents[2]
NUM_HEADS = 2
NUM_RECORDED = 660
PREFILLS = [(512, 0.5, 8), (512, 0.5, 24)]


@pytest.fixture(scope="module")
def random_rows() -> oracle.LogitRows:
    return oracle.random_rows(NUM_HEADS, NUM_RECORDED)


@pytest.fixture(scope="module")
def recorded(smollm_fp32: LanguageModel) -> oracle.LogitRows:
    """Attention of two KV heads of a middle layer of SmolLM2 over a real text, in fp32, as logarithms."""
    text = "\n\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples/documents/travel").glob("*.md"))
    )
    ids = smollm_fp32.tokenizer.encode(text)[:NUM_RECORDED]
    assert len(ids) == NUM_RECORDED
    model, weights = smollm_fp32.hf_model, []
    layer = model.model.layers[14].self_attn
    hook = layer.register_forward_hook(lambda _module, _inputs, output: weights.append(output[1]))
    used = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            model(torch.tensor([ids]))
    finally:
        model.set_attn_implementation(used)
        hook.remove()
    per_head = weights[0][0].unflatten(0, (smollm_fp32.num_kv_heads, -1))[:NUM_HEADS]
    return oracle.LogitRows(np.log(per_head.double().clamp_min(1e-30).numpy()))


def by_head(steps: list[torch.Tensor]) -> list[list[list[int]]]:
    return torch.stack(steps).transpose(0, 1).tolist()


def check_decode(rows: oracle.LogitRows, budget: int) -> None:
    start, stop = 40, min(40 + 3 * budget, NUM_RECORDED)
    rows = oracle.LogitRows(rows.logits, prompt=start)
    expected = [oracle.decoded(rows, head, start, stop, budget) for head in range(NUM_HEADS)]
    assert by_head(list(decode(rows, NUM_HEADS, start, stop, budget))) == expected
    assert len(expected[0]) == stop - start - budget


def check_prefill(rows: oracle.LogitRows, num_tokens: int, budget: float, stride: int, *, kept: bool) -> None:
    plan = plan_prefill(num_tokens, budget, stride)
    _, final = oracle.sizes(num_tokens, budget, stride)
    expected = [
        oracle.prefilled(rows, head, num_tokens, budget, stride, first=final - stride, kept=kept, stop=num_tokens)
        for head in range(NUM_HEADS)
    ]
    assert by_head(list(prefill(rows, NUM_HEADS, plan, keeps_attention=kept))) == expected
    assert len(expected[0]) == (num_tokens - final) // stride > 0


def check_auto(rows: oracle.LogitRows, *, kept: bool) -> None:
    num_tokens, budget, stride, stop = 600, 256, 16, 640
    assert plan_prefill(num_tokens, budget, stride, is_auto=True).first_tokens == 8
    expected = [
        oracle.prefilled(rows, head, num_tokens, budget, stride, first=8, kept=kept, stop=stop)
        for head in range(NUM_HEADS)
    ]
    steps = list(auto(rows, NUM_HEADS, num_tokens, stop, budget, stride, keeps_attention=kept))
    got = [[step[head].tolist() for step in steps] for head in range(NUM_HEADS)]
    assert got == expected
    assert [len(step) for step in got[0]] == [16] * 21 + [1] * 40


@pytest.mark.parametrize("budget", [34, 40, 100, 200, 1, 20])
def test_decoding_on_random_rows(random_rows: oracle.LogitRows, budget: int) -> None:
    check_decode(random_rows, budget)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("case", PREFILLS, ids=str)
def test_prefill_on_random_rows(random_rows: oracle.LogitRows, case: tuple[int, float, int], kept: bool) -> None:
    check_prefill(random_rows, *case, kept=kept)


@pytest.mark.parametrize("kept", [False, True])
def test_auto_on_random_rows(random_rows: oracle.LogitRows, kept: bool) -> None:
    check_auto(random_rows, kept=kept)


@pytest.mark.model
@pytest.mark.parametrize("budget", [34, 40, 100, 200])
def test_decoding_on_recorded_attention(recorded: oracle.LogitRows, budget: int) -> None:
    check_decode(recorded, budget)


@pytest.mark.model
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("case", PREFILLS, ids=str)
def test_prefill_on_recorded_attention(recorded: oracle.LogitRows, case: tuple[int, float, int], kept: bool) -> None:
    check_prefill(recorded, *case, kept=kept)


@pytest.mark.model
@pytest.mark.parametrize("kept", [False, True])
def test_auto_on_recorded_attention(recorded: oracle.LogitRows, kept: bool) -> None:
    check_auto(recorded, kept=kept)


@pytest.mark.parametrize(
    ("num_tokens", "budget", "stride", "final"),
    [(5144, 0.5, 24, 2576), (9994, 0.5, 96, 5002), (10253, 0.5, 96, 5165)],
)
def test_size_vectors(num_tokens: int, budget: float, stride: int, final: int) -> None:
    plan = plan_prefill(num_tokens, budget, stride)
    assert plan.final_tokens == final
    assert plan.first_tokens == final - stride


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40))
def test_sizes_are_the_largest_that_suit_the_stride(num_tokens: int, budget: int, stride: int) -> None:
    limit, final = oracle.sizes(num_tokens, budget, stride)
    plan = plan_prefill(num_tokens, budget, stride, is_auto=True)
    assert (plan.limit_tokens, plan.final_tokens) == (limit, final)
    if final < num_tokens:
        assert 1 <= plan.first_tokens <= stride
        assert (final - plan.first_tokens) % stride == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 80), st.integers(1, 30), st.booleans())
def test_auto_at_any_size(num_tokens: int, budget: int, stride: int, kept: bool) -> None:
    """Nothing is dropped twice, and the cache ends at the size that was planned."""
    rows, stop = oracle.random_rows(NUM_HEADS, 70, seed=num_tokens), 70
    if budget > num_tokens:
        rows = oracle.LogitRows(rows.logits, prompt=num_tokens)
        left = min(budget - num_tokens, stop - num_tokens)
        ever = range(num_tokens, stop)
    else:
        left = min(plan_prefill(num_tokens, budget, stride, is_auto=True).final_tokens, stop)
        ever = range(stop)
    steps = list(auto(rows, NUM_HEADS, num_tokens, stop, budget, stride, keeps_attention=kept))
    for head in range(NUM_HEADS):
        gone = [token for step in steps for token in step[head].tolist()]
        assert len(set(gone)) == len(gone) == len(ever) - left
        assert set(gone) <= set(ever)


def test_scopes_of_the_modes(random_rows: oracle.LogitRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention seldom lets the last few slots of a scope decide, so their number is checked by itself."""
    asked: list[tuple[int, int, int]] = []

    def spy(view: SlotView, scope_tokens: int, count: int, sink_tokens: int = 0) -> torch.Tensor:
        asked.append((scope_tokens, count, sink_tokens))
        return give_up(view, scope_tokens, count, sink_tokens)

    monkeypatch.setattr("epic_rag.evict.easykv.give_up", spy)
    list(decode(random_rows, NUM_HEADS, 0, 102, 100))
    assert asked == [(70, 1, 0)] * 2
    asked.clear()
    list(prefill(random_rows, NUM_HEADS, plan_prefill(512, 0.5, 8)))
    assert set(asked) == {(264 - 26 - 4, 8, 4)}
    list(prefill(random_rows, NUM_HEADS, plan_prefill(96, 4, 24)))
    assert asked[-1] == (24, 24, 4), "never less than the stride"
    asked.clear()
    list(auto(random_rows, NUM_HEADS, 600, 602, 256, 16))
    assert asked == [(272 - 27 - 4, 16, 4)] * 21 + [(272 - 81, 1, 0)] * 2


@given(st.integers(2, 80), st.integers(0, 999), st.booleans(), st.data())
def test_one_decision_on_any_statistics(num_slots: int, seed: int, ties: bool, data: st.DataObject) -> None:
    scope = data.draw(st.integers(1, num_slots))
    count, sinks = data.draw(st.integers(1, scope)), data.draw(st.sampled_from([0, 4]))
    mean, std = torch.rand(2, 1, num_slots, generator=torch.Generator().manual_seed(seed))
    if ties:
        mean, std = (mean * 3).round() / 4, (std * 3).round() / 4
    ones = torch.ones(1, num_slots)
    view = SlotView(torch.arange(num_slots)[None].int(), mean, mean.square() + std.square(), ones, ones)
    stds, means = view.std[0].tolist(), view.mean[0].tolist()
    safe = [i < sinks or i >= num_slots - 10 for i in range(num_slots)]
    even = sorted(range(num_slots), key=lambda i: (safe[i], 0.0 if safe[i] else stds[i], i))[:scope]
    expected = sorted(even, key=lambda i: (means[i], even.index(i)))[:count]
    assert give_up(view, scope, count, sinks)[0].tolist() == expected


def test_what_the_reference_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one stride"):
        plan_prefill(100, 2, 16)
    with pytest.raises(ConfigError, match="at least 1 token"):
        plan_prefill(100, 2, 0)
