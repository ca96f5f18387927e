"""A KV budget inside transformers' own generate: batches with padding, sampling, streaming, every architecture."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SUPPORTED, make_hf, make_tiny, make_tokenizer
from transformers import DynamicCache, TextIteratorStreamer, set_seed

from epic_rag.errors import ConfigError, UnsupportedModelError
from epic_rag.evict import POLICIES, KVBudget, RoCo, SlotScores, parse_policy
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.kv_cache import KVCache
from epic_rag.model import LanguageModel
from epic_rag.model.budget_row import Rows
from epic_rag.model.hf_cache import BUDGET_ATTENTION, BudgetCache, register_budget_attention

ROOT = Path(__file__).resolve().parents[2]
EVICTING = [name for name in POLICIES if name != "full"]
PAD, STEPS = 258, 10


def ids(num_tokens: int, seed: int = 1) -> torch.Tensor:
    """`[1, num_tokens]` token ids."""
    return torch.randint(3, 250, (1, num_tokens), generator=torch.Generator().manual_seed(seed))


PROMPTS = (ids(61), ids(40, seed=2), ids(1, seed=3))


def padded(prompts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch, padded at the left, and its attention mask."""
    width = max(prompt.shape[1] for prompt in prompts)
    rows = [torch.cat((torch.full((1, width - p.shape[1]), PAD), p), dim=1) for p in prompts]
    mask = [torch.arange(width)[None] >= width - p.shape[1] for p in prompts]
    return torch.cat(rows), torch.cat(mask).long()


def hf_model(case: str = "llama", dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    architecture, settings = SUPPORTED[case]
    model = make_hf(architecture, dtype, **settings)
    model.set_attn_implementation(register_budget_attention())
    return model


def run(model: torch.nn.Module, inputs: torch.Tensor, cache: object, mask: object = None, **kwargs: object) -> list:
    """Token ids that `generate` adds, by sequence."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    how = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "pad_token_id": PAD, **kwargs}
    mask = torch.ones_like(inputs) if mask is None else mask
    return model.generate(inputs, attention_mask=mask, **{name: cache}, **how)[:, inputs.shape[1] :].tolist()


def kept(cache: BudgetCache, sequence: int = 0) -> torch.Tensor:
    return cache.kept_positions(sequence).sort(-1).values


@pytest.mark.parametrize("case", SUPPORTED)
def test_with_room_for_everything_it_is_ordinary_generation(case: str) -> None:
    architecture, settings = SUPPORTED[case]
    batch, mask = padded(PROMPTS)
    expected = run(make_hf(architecture, **settings), batch, None, mask)
    model = hf_model(case)
    assert run(model, batch, BudgetCache(model.config, 100), mask) == expected
    assert run(model, batch, DynamicCache(), mask) == expected, "other caches work as ever"


@pytest.mark.parametrize("case", SUPPORTED)
def test_a_padded_batch_keeps_what_each_prompt_keeps_alone(case: str) -> None:
    """The same slots and the same answers, and both are those of the product's own path."""
    model, tiny = hf_model(case), make_tiny(case)
    batch, mask = padded(PROMPTS)
    together = BudgetCache(model.config, 20, stride_tokens=8)
    answers = run(model, batch, together, mask)
    for i, prompt in enumerate(PROMPTS):
        alone = BudgetCache(model.config, 20, stride_tokens=8)
        assert run(model, prompt, alone) == [answers[i]]
        assert torch.equal(kept(alone), kept(together, i))
        own = own_positions(tiny, prompt[0].tolist(), answers[i], "roco", 20, 8)
        assert torch.equal(own, kept(together, i))


def own_positions(
    model: LanguageModel, prompt: list[int], answer: list[int], policy: str, budget: int, stride: int
) -> torch.Tensor:
    """What `epic_rag.generate` keeps; and its greedy answer must be `answer`."""
    bounds = Bounds.of_mode("auto", len(prompt), STEPS - 1, budget, stride)
    kv = BoundedKV(model, bounds, parse_policy(policy, budget), stride)
    logits = kv.prefill(prompt)
    for token in answer[:-1]:
        assert int(logits.argmax()) == token
        logits = kv.step(token)
    if kv._scores is None:  # nothing was ever evicted
        return torch.arange(kv.cache.length, dtype=torch.int32).expand(model.num_layers, model.num_kv_heads, -1)
    return kv._scores.positions[:, :, : kv.cache.length].sort(-1).values


@pytest.mark.parametrize("policy", [*EVICTING, "roco:head", "tova:head"])
def test_every_policy_works_in_a_padded_batch(policy: str) -> None:
    model, tiny = hf_model("qwen2"), make_tiny("qwen2")
    batch, mask = padded(PROMPTS)
    cache = BudgetCache(model.config, 9, policy, stride_tokens=5)
    answers = run(model, batch, cache, mask)
    for i, prompt in enumerate(PROMPTS):
        own = own_positions(tiny, prompt[0].tolist(), answers[i], policy, 9, 5)
        assert torch.equal(own, kept(cache, i))


@pytest.mark.parametrize("case", ["llama", "gpt_neox", "qwen3"])
def test_what_is_kept_is_what_eager_attention_says(case: str) -> None:
    """Statistics from transformers' eager probabilities choose the slots that our two score paths choose."""
    model, prompt = hf_model(case), PROMPTS[0]
    heads = SUPPORTED[case][1].get("num_key_value_heads", 2)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(prompt, output_attentions=True).attentions
    scores = SlotScores(len(weights), heads, 61)
    for layer, probabilities in enumerate(weights):
        rows = probabilities[0].unflatten(0, (heads, -1)).mean(1)
        scores.observe(layer, rows.sum(1), rows.square().sum(1), torch.arange(61, 0, -1), rows[:, -1])
    chosen = RoCo("head").keep(scores.view("head"), torch.zeros(61, dtype=torch.bool), 20).int()
    model.set_attn_implementation(BUDGET_ATTENTION)
    for stride in (41, 64):  # the rows of a fused prefill, evicted once
        cache = BudgetCache(model.config, 20, policy="roco:head", stride_tokens=stride)
        run(model, prompt, cache, max_new_tokens=1, min_new_tokens=1)
        assert torch.equal(kept(cache).flatten(0, 1), chosen)


def test_fused_and_grouped_rows_choose_alike() -> None:
    """One prompt in one fused prefill, or its first tokens before: nothing is evicted until both have seen all."""
    model, prompt, caches = hf_model(), PROMPTS[0], []
    for first in (0, 7, 40):
        cache = BudgetCache(model.config, 41, stride_tokens=20)
        with torch.inference_mode():
            for part in (prompt[:, :first], prompt[:, first:]):
                if part.shape[1]:
                    model(part, use_cache=True, **named(model, cache))
        caches.append(kept(cache))
    assert caches[0].shape[-1] == 41
    assert torch.equal(caches[0], caches[1])
    assert torch.equal(caches[0], caches[2])


def named(model: torch.nn.Module, cache: BudgetCache) -> dict[str, BudgetCache]:
    return {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}


def test_sampling_and_streaming() -> None:
    model, (batch, mask) = hf_model(), padded(PROMPTS[:2])
    expected = []
    for cache in (DynamicCache(), BudgetCache(model.config, 100)):
        set_seed(11)
        expected.append(run(model, batch, cache, mask, do_sample=True, top_k=20))
    assert expected[0] == expected[1]
    tokenizer = make_tokenizer()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    told = run(model, PROMPTS[0], BudgetCache(model.config, 20), streamer=streamer)[0]
    assert "".join(streamer) == tokenizer.decode(told)


def test_beams_follow_their_sequences() -> None:
    model, (batch, mask) = hf_model(), padded(PROMPTS[:2])
    expected = run(model, batch, DynamicCache(), mask, num_beams=3)
    assert run(model, batch, BudgetCache(model.config, 100), mask, num_beams=3) == expected
    tight = BudgetCache(model.config, 12, stride_tokens=4)
    assert run(model, batch, tight, mask, num_beams=3) == run(
        model, batch, BudgetCache(model.config, 12, stride_tokens=4), mask, num_beams=3
    )
    assert kept(tight, 5).shape[-1] == 12


def test_a_conversation_goes_on_and_chunks_of_transformers_fit() -> None:
    model, first, more = hf_model(), PROMPTS[0], ids(9, seed=7)
    for make in (lambda: BudgetCache(model.config, 200), DynamicCache):
        cache = make()
        said = torch.tensor(run(model, first, cache))
        whole = torch.cat((first, said, more), dim=1)
        answers = run(model, whole, cache)
        assert answers == run(model, whole, make())
    tight = BudgetCache(model.config, 16, stride_tokens=8)
    run(model, first, tight, prefill_chunk_size=8)
    at_once = BudgetCache(model.config, 16, stride_tokens=8)
    run(model, first, at_once)
    assert torch.equal(kept(tight), kept(at_once)), "chunks of the stride that end at the budget"


def test_one_token_among_padding_is_what_it_is_alone() -> None:
    """A sequence goes on with one token while another goes on with many: both keep what they keep alone."""
    model = hf_model()

    def last_logits(parts: list[list[torch.Tensor]], cache: BudgetCache) -> torch.Tensor:
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        mask = torch.empty(len(parts[0]), 0, dtype=torch.long)
        for part in parts:
            batch, new = padded(tuple(part))
            mask = torch.cat((mask, new), dim=1)
            places = (mask.cumsum(1) - 1).clamp_min(0)[:, -batch.shape[1] :]
            with torch.no_grad():
                logits = model(batch, attention_mask=mask, position_ids=places, **{name: cache}).logits
        return logits[:, -1]

    long, short = ids(50), ids(30, seed=2)
    parts = [[long[:, :20], short[:, :20]], [long[:, 20:27], short[:, 20:21]], [long[:, 27:28], short[:, 21:26]]]
    together = BudgetCache(model.config, 12, stride_tokens=4)
    logits = last_logits(parts, together)
    for i in range(2):
        alone = BudgetCache(model.config, 12, stride_tokens=4)
        torch.testing.assert_close(last_logits([[part[i]] for part in parts], alone), logits[i : i + 1])
        assert torch.equal(kept(together, i), kept(alone))


def test_peak_memory_is_budget_and_stride_for_any_prompt() -> None:
    model = hf_model()
    one_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, dimensions, bytes
    cache = BudgetCache(model.config, KVBudget(size_bytes=24 * one_token + 7), stride_tokens=8)
    run(model, ids(500), cache)
    assert cache.kv_bytes == (24 + 8) * one_token
    assert cache.get_seq_length() == 500 + STEPS - 1
    assert cache.kept_positions().shape == (2, 2, 24)
    assert int(cache.kept_positions().max()) == 500 + STEPS - 2, "positions are the true ones"


@pytest.mark.parametrize(("budget", "stride"), [(1, 1), (1, 64), (64, 1), (5, 100)])
def test_budgets_are_exact(budget: int, stride: int) -> None:
    model, (batch, mask) = hf_model(), padded(PROMPTS)
    cache = BudgetCache(model.config, budget, stride_tokens=stride)
    run(model, batch, cache, mask)
    for i, prompt in enumerate(PROMPTS):
        assert cache.kept_positions(i).shape[-1] == min(budget, prompt.shape[1] + STEPS - 1)


def test_half_precision_and_repeated_runs() -> None:
    model, (batch, mask) = hf_model("llama", torch.bfloat16), padded(PROMPTS)
    caches = [BudgetCache(model.config, 20, stride_tokens=8) for _ in range(2)]
    answers = [run(model, batch, cache, mask) for cache in caches]
    assert answers[0] == answers[1]
    for i in range(3):
        assert torch.equal(kept(caches[0], i), kept(caches[1], i))


@pytest.mark.model
def test_the_real_model_in_a_padded_batch(smollm_fp32: LanguageModel) -> None:
    text = (ROOT / "examples/documents/science/telescope-manual.rst").read_text(encoding="utf-8")
    tokens = smollm_fp32.tokenizer.encode(text)
    prompts = (torch.tensor([tokens[:70]]), torch.tensor([tokens[100:150]]))
    batch, mask = padded(prompts)
    model = smollm_fp32.hf_model
    used, wrapped = model.config._attn_implementation, run(model, batch, DynamicCache(), mask)
    model.set_attn_implementation(register_budget_attention())
    try:
        assert run(model, batch, BudgetCache(model.config, 200), mask) == wrapped
        cache = BudgetCache(model.config, 32, stride_tokens=16)
        answers = run(model, batch, cache, mask)
        for i, prompt in enumerate(prompts):
            own = own_positions(smollm_fp32, prompt[0].tolist(), answers[i], "roco", 32, 16)
            assert torch.equal(own, kept(cache, i))
    finally:
        model.set_attn_implementation(used)


def test_a_model_with_another_attention_is_told_how_to_set_it() -> None:
    model = make_hf("llama")
    with pytest.raises(ConfigError, match=r"set_attn_implementation\('epic_rag_budget'\)"):
        run(model, PROMPTS[0], BudgetCache(model.config, 20))


def test_a_forward_that_broke_off_needs_a_reset() -> None:
    model = hf_model()
    cache = BudgetCache(model.config, 20)
    layer, hook = model.model.layers[1], None

    def fail(*_: object) -> None:
        raise RuntimeError("broken off")

    hook = layer.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken off"):
        run(model, PROMPTS[0], cache)
    hook.remove()
    with pytest.raises(ConfigError, match=r"a forward was broken off: call cache.reset\(\)"):
        run(model, PROMPTS[0], cache)
    cache.reset()
    assert run(model, PROMPTS[0], cache) == run(model, PROMPTS[0], BudgetCache(model.config, 20))


@pytest.mark.parametrize("part", [1, 3])
def test_a_first_layer_that_broke_off_needs_a_reset_too(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots and statistics have changed by then."""
    model, calls = hf_model(), []
    cache, real = BudgetCache(model.config, 8, stride_tokens=4), Rows.attend

    def attend(self: Rows, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == part:
            raise MemoryError
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "attend", attend)
        with pytest.raises(MemoryError):
            run(model, PROMPTS[0], cache)
    with pytest.raises(ConfigError, match=r"a forward was broken off: call cache.reset\(\)"):
        run(model, PROMPTS[0], cache)
    cache.reset()
    assert run(model, PROMPTS[0], cache) == run(model, PROMPTS[0], BudgetCache(model.config, 8, stride_tokens=4))


def test_what_does_not_fit_is_refused_in_words() -> None:
    model = hf_model()
    config = model.config
    with pytest.raises(ConfigError, match="a share of the prompt cannot be taken"):
        BudgetCache(config, KVBudget(ratio=0.5))
    with pytest.raises(ConfigError, match="policy 'full' keeps every token"):
        BudgetCache(config, 20, "full")
    for stride in (0, "8", 1.5, True, None):
        with pytest.raises(ConfigError, match=f"the stride must be at least 1 token, got {stride!r}"):
            BudgetCache(config, 20, stride_tokens=stride)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="begins with statistics of stored chunks"):
        BudgetCache(config, 20, "roco:seeded")
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        BudgetCache(config, 0)
    with pytest.raises(UnsupportedModelError, match="sliding-window"):
        BudgetCache(make_hf("mistral", sliding_window=8).config, 20)
    cache = BudgetCache(config, 20)
    with pytest.raises(ConfigError, match="a KV budget of 7 bytes holds no token"):
        run(model, PROMPTS[0], BudgetCache(config, KVBudget(size_bytes=7)))
    with pytest.raises(ConfigError, match="give attention_mask"), torch.inference_mode():
        model(PROMPTS[0], attention_mask=torch.ones(1, 1, 61, 61, dtype=torch.bool), **named(model, cache))
    cache.reset()
    run(model, PROMPTS[0], cache)
    with pytest.raises(ConfigError, match="of 1 sequences was given 2: use a new one"), torch.inference_mode():
        model(torch.cat((PROMPTS[0], PROMPTS[0])), **named(model, cache))
    with pytest.raises(ConfigError, match="cannot be rolled back"):
        cache.crop(-1)


def test_training_is_refused_and_autocast_works() -> None:
    model = hf_model()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(PROMPTS[0], **named(model, BudgetCache(model.config, 100))).logits
        expected = model(PROMPTS[0]).logits
    torch.testing.assert_close(logits, expected, atol=0.02, rtol=0.05)
    model.train()
    with pytest.raises(ConfigError, match="passes no gradients"):
        model(PROMPTS[0], labels=PROMPTS[0], **named(model, BudgetCache(model.config, 16)))


def test_a_model_in_both_uses_links_as_before() -> None:
    """A `LanguageModel` whose attention was set to ours still runs row passes."""
    tiny, ours = make_tiny("llama"), []
    prompt = PROMPTS[0][0].tolist()
    for name in ("epic_rag", register_budget_attention()):
        tiny.hf_model.set_attn_implementation(name)
        cache: KVCache = tiny.new_cache(61)
        ours.append(tiny.forward(tiny.ids(prompt), tiny.positions(0, 61), cache))
    assert torch.equal(ours[0], ours[1])
