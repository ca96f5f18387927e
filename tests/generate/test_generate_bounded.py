"""KV within bounds: exact sizes, true positions, and statistics only where a policy reads them."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.evict import POLICIES, parse_policy
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.model import LanguageModel

EVICTING = [name for name in POLICIES if name != "full"]
ANSWER = [7, 91, 33, 150, 12, 64, 8, 201, 17]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return make_tiny("qwen3")


def prompt(num_tokens: int) -> list[int]:
    return torch.randint(3, 250, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens)).tolist()


def bounded(
    model: LanguageModel, policy: str, mode: str, num_tokens: int, budget: int, stride: int, answer: int = len(ANSWER)
) -> BoundedKV:
    bounds = Bounds.of_mode(mode, num_tokens, answer, budget, stride)
    return BoundedKV(model, bounds, parse_policy(policy, budget), stride)


@pytest.mark.parametrize("policy", EVICTING)
@pytest.mark.parametrize("mode", ["encoding", "decoding", "auto"])
def test_budgets_are_exact(tiny: LanguageModel, policy: str, mode: str) -> None:
    """Prompts shorter than the budget, a budget of 1, a stride of 1, and one longer than the prompt."""
    for num_tokens, budget, stride in [(5, 10, 4), (20, 1, 1), (20, 1, 64), (20, 7, 64), (30, 10, 1), (1, 1, 1)]:
        kv = bounded(tiny, policy, mode, num_tokens, budget, stride)
        kv.prefill(prompt(num_tokens))
        kept = num_tokens if mode == "decoding" else min(num_tokens, budget)
        assert kv.cache.length == kept
        for count, token in enumerate(ANSWER, 1):
            logits = kv.step(token)
            assert torch.isfinite(logits).all()
            expected = {
                "encoding": kept + count,
                "decoding": num_tokens + min(count, budget),
                "auto": min(num_tokens + count, budget),
            }
            assert kv.cache.length == expected[mode]
            assert kv.cache.next_position == num_tokens + count
        assert kv.peak_slots == kv.cache.capacity, "no slot is reserved in vain"


def test_kv_peaks_at_budget_and_stride(tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated for keys and values, counted by their storages, is that of budget + stride slots."""
    made: list[int] = []
    new_cache = LanguageModel.new_cache

    def counted(self: LanguageModel, capacity: int) -> object:
        cache = new_cache(self, capacity)
        made.append(cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes())
        return cache

    monkeypatch.setattr(LanguageModel, "new_cache", counted)
    kv = bounded(tiny, "roco", "auto", 400, 48, 16)
    kv.prefill(prompt(400))
    for token in ANSWER:
        kv.step(token)
    assert made == [(48 + 16) * tiny.kv_bytes_per_token]
    assert kv.peak_slots == 48 + 16


def recency_mask(num_tokens: int, budget: int, stride: int) -> torch.Tensor:
    """`[n, n]` bool: what each token sees when four sinks and the latest stay after each chunk."""
    sees, kept = torch.zeros(num_tokens, num_tokens, dtype=torch.bool), []
    for start in range(0, num_tokens, stride):
        for token in range(start, min(start + stride, num_tokens)):
            kept.append(token)
            sees[token, kept] = True
        if len(kept) > budget:
            sinks = min(4, budget // 2)
            kept = kept[:sinks] + kept[len(kept) - budget + sinks :]
    return sees


@pytest.mark.parametrize("case", ["llama", "gpt_neox", "cohere"])
def test_rows_see_what_stayed_at_its_true_position(case: str) -> None:
    """The same logits as one forward of transformers' own over all tokens, with a mask of what each may see."""
    model, ids, budget, stride = make_tiny(case), prompt(40), 13, 6
    kv = BoundedKV(model, Bounds.of_prompt(40, budget, stride), parse_policy("recency", budget), stride)
    parts = [ids[start : start + stride] for start in range(0, 40, stride)]
    ours = torch.cat([kv.extend(part, len(part)) for part in parts])
    bias = torch.zeros(40, 40).masked_fill(~recency_mask(40, budget, stride), float("-inf"))
    model.hf_model.set_attn_implementation("eager")
    with torch.inference_mode():
        true = model.hf_model(torch.tensor([ids]), attention_mask=bias[None, None]).logits[0]
    torch.testing.assert_close(ours, true, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("policy", ["roco", "roco:head", "tova", "random"])
def test_the_same_run_keeps_the_same_slots(tiny: LanguageModel, policy: str) -> None:
    caches = []
    for _ in range(2):
        kv = bounded(tiny, policy, "auto", 90, 20, 8)
        kv.prefill(prompt(90))
        for token in ANSWER:
            kv.step(token)
        caches.append(kv.cache)
    assert torch.equal(caches[0].keys[:, :, :20], caches[1].keys[:, :, :20])


def observed(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each forward from now on reports scores."""
    told: list[bool] = []
    forward = LanguageModel.forward

    def spy(self: LanguageModel, *args: object, scores: object = None, **kwargs: object) -> torch.Tensor:
        told.append(scores is not None)
        return forward(self, *args, scores=scores, **kwargs)

    monkeypatch.setattr(LanguageModel, "forward", spy)
    return told


@pytest.mark.parametrize(
    ("policy", "mode", "budget", "prefill", "answer"),
    [
        ("roco", "auto", 10, True, True),
        ("roco", "encoding", 10, True, False),
        ("roco", "decoding", 4, False, True),
        ("roco", "auto", 31, True, True),  # the prompt fits, the answer will not
        ("roco", "auto", 60, False, False),
        ("roco", "decoding", 60, False, False),
        ("recency", "auto", 10, False, False),
        ("random", "auto", 10, False, False),
    ],
)
def test_statistics_are_collected_only_where_a_policy_reads_them(
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    mode: str,
    budget: int,
    prefill: bool,
    answer: bool,
) -> None:
    told = observed(tiny, monkeypatch)
    kv = bounded(tiny, policy, mode, 30, budget, 8)
    kv.prefill(prompt(30))
    assert set(told) == {prefill}
    told.clear()
    kv.step(5)
    assert told == [answer]


def test_the_prompt_stays_whole_while_the_answer_is_held_down(tiny: LanguageModel) -> None:
    kv = bounded(tiny, "roco", "decoding", 30, 4, 8)
    kv.prefill(prompt(30))
    before = kv.cache.keys[:, :, :30].clone()
    for token in ANSWER:
        kv.step(token)
    assert torch.equal(kv.cache.keys[:, :, :30], before)
    assert kv.cache.length == 34


def test_positions_held_are_those_of_the_tokens(tiny: LanguageModel) -> None:
    """Layer 0's keys depend on token and position alone, so they tell which positions are where."""
    ids = prompt(50)
    kv, plain = bounded(tiny, "h2o", "auto", 50, 12, 5), tiny.new_cache(59)
    everything = [*ids, *ANSWER]
    tiny.forward(tiny.ids(everything), tiny.positions(0, 59), plain)
    kv.prefill(ids)
    for token in ANSWER:
        kv.step(token)
    for head in range(tiny.num_kv_heads):
        distance = torch.cdist(kv.cache.keys[0, head, :12], plain.keys[0, head])
        nearest = distance.min(-1)
        assert float(nearest.values.max()) < 1e-2 < 1.0 < float(distance.topk(2, largest=False).values[:, 1].min())
        assert len(set(nearest.indices.tolist())) == 12


def test_a_budget_that_is_never_reached_changes_no_bit(tiny: LanguageModel) -> None:
    ids = prompt(40)
    plain = tiny.new_cache(49)
    expected = tiny.forward(tiny.ids(ids), tiny.positions(0, 40), plain)[-1]
    for mode in ("encoding", "decoding", "auto"):
        kv = bounded(tiny, "roco", mode, 40, 64, 8)
        assert torch.equal(kv.prefill(ids), expected)
        assert torch.equal(kv.cache.keys[:, :, :40], plain.keys[:, :, :40])
