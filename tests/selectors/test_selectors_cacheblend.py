"""CacheBlend against a slow one, and the forward that ends at a layer."""

from __future__ import annotations

import threading

import pytest
import torch
from slow_link import NUM_LAYERS, SlowLink, encode_all, make_model, make_prompt
from tiny_models import SUPPORTED, make_tiny

from epic_rag.errors import UnsupportedModelError
from epic_rag.link import link, place, spans
from epic_rag.model import LanguageModel
from epic_rag.model import forward as forwarding
from epic_rag.selectors import CacheBlendSelector, Linking, parse_selector
from epic_rag.selectors.cacheblend import layers_computed

PROMPT = make_prompt()
CONTEXT = range(len(PROMPT.prefix_ids), PROMPT.suffix_start)
ARCHITECTURES = ("llama", "qwen2")


def placed(model: LanguageModel, behind: tuple[int, ...] = (1, 2, 3)) -> Linking:
    cache = model.new_cache(PROMPT.num_tokens)
    place(model, encode_all(model, PROMPT, behind), cache)
    return Linking(model, PROMPT, tuple(spans(PROMPT, behind)), cache)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.05, 0.15, 0.5])
def test_it_chooses_what_a_slow_one_chooses(architecture: str, share: float) -> None:
    slow = SlowLink(architecture, PROMPT)
    deviations = slow.deviation(CONTEXT, layer=1).tolist()
    order = sorted(CONTEXT, key=lambda p: (-deviations[p - CONTEXT.start], p))
    expected = sorted(order[: round(share * len(CONTEXT))])
    model = make_model(architecture)
    assert CacheBlendSelector(share).select(placed(model)).positions == tuple(expected)
    linked = link(
        model, PROMPT, encode_all(model, PROMPT), CacheBlendSelector(share), spare_tokens=0, logits_to_keep=11
    )
    torch.testing.assert_close(linked.logits, slow.linked(expected).logits[-11:], atol=1e-4, rtol=1e-4)
    assert linked.num_recomputed == len(expected) + len(PROMPT.suffix_ids), "the question is computed whole"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_deviation_is_taken_under_the_exact_mask(architecture: str) -> None:
    """Layer 1's fresh KV of the context is that of a full prefill: no row of it saw a stale or a later one."""
    model = make_model(architecture)
    full = link(model, PROMPT, [], parse_selector("full"), spare_tokens=0).cache
    linking = placed(model)
    for layer in range(NUM_LAYERS):
        scratch = model.new_cache(PROMPT.num_tokens)
        place(model, encode_all(model, PROMPT), scratch)
        ids = model.ids(PROMPT.token_ids[CONTEXT.start : CONTEXT.stop])
        keys, values = model.keys_values(ids, model.positions(CONTEXT.start, CONTEXT.stop), scratch, layer)
        torch.testing.assert_close(keys, full.keys[layer][:, CONTEXT.start : CONTEXT.stop], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(values, full.values[layer][:, CONTEXT.start : CONTEXT.stop], atol=1e-4, rtol=1e-4)
        stale = linking.cache.keys[layer:, :, : CONTEXT.stop]
        assert torch.equal(scratch.keys[layer:, :, : CONTEXT.stop], stale), "nothing at the layer or behind it"


@pytest.mark.parametrize("case", ["llama", "qwen2", "yarn-rope", "phi", "gpt_neox", "glm", "mixtral"])
def test_everything_chosen_is_a_full_prefill(case: str) -> None:
    model = make_tiny(case)
    full = link(model, PROMPT, [], parse_selector("full"), spare_tokens=0, logits_to_keep=11)
    linked = link(
        model, PROMPT, encode_all(model, PROMPT), parse_selector("cacheblend:1"), spare_tokens=0, logits_to_keep=11
    )
    torch.testing.assert_close(linked.logits, full.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(linked.cache.keys, full.cache.keys, atol=1e-4, rtol=1e-4)


def test_an_exact_chunk_is_neither_computed_nor_chosen() -> None:
    model = make_model("llama")
    linking = placed(model, PROMPT.prefix_ids)
    assert linking.chunks[0].is_exact
    selection = CacheBlendSelector(1.0).select(linking)
    assert selection.positions == tuple(range(linking.chunks[1].start, PROMPT.suffix_start))
    assert selection.cost_rows == pytest.approx((41 + 17) * layers_computed(model, 1) / NUM_LAYERS)


def test_what_choosing_costs() -> None:
    """A layer has 64 x 64 and two times 64 x 32 weights in front of the attention, 64 x 64 behind it and 3 x 64 x 96
    in the MLP, and two norms of 64."""
    model = make_model("llama")
    projections = 64 * 64 + 2 * 64 * 32
    layer = projections + 64 * 64 + 3 * 64 * 96 + 2 * 64
    linked = link(model, PROMPT, encode_all(model, PROMPT), CacheBlendSelector(0.15), spare_tokens=0)
    assert linked.selection_rows == pytest.approx(len(CONTEXT) * (1 + projections / layer) / NUM_LAYERS)


@pytest.mark.parametrize("case", SUPPORTED)
def test_the_projections_of_every_supported_model_are_known(case: str) -> None:
    assert 1 < layers_computed(make_tiny(case), 1) < 2


def test_choosing_leaves_the_placed_cache_as_it_is() -> None:
    model = make_model("qwen2")
    linking, twin = placed(model), placed(model)
    linking.cache.keys[:, :, PROMPT.suffix_start :] = twin.cache.keys[:, :, PROMPT.suffix_start :] = 7.0
    linking.cache.values[:, :, PROMPT.suffix_start :] = twin.cache.values[:, :, PROMPT.suffix_start :] = 7.0
    CacheBlendSelector(0.3).select(linking)
    assert torch.equal(linking.cache.keys, twin.cache.keys)
    assert torch.equal(linking.cache.values, twin.cache.values)
    assert (linking.cache.length, linking.cache.next_position) == (PROMPT.suffix_start, PROMPT.suffix_start)


def hooks(model: LanguageModel) -> list[tuple[int, int]]:
    return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.hf_model.modules()]


@pytest.mark.parametrize("fails", [False, True])
def test_a_forward_that_ends_early_leaves_nothing_behind(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    ids = model.ids(PROMPT.token_ids)
    plain = model.hf_model(input_ids=ids[None], output_hidden_states=True)
    before = hooks(model)
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(forwarding, "rerotate_", raising)
            with pytest.raises(UnsupportedModelError, match="as asked"):
                CacheBlendSelector(0.2).select(placed_by(model))
    else:
        CacheBlendSelector(0.2).select(placed(model))
    assert forwarding._ACTIVE.get() is None
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert hooks(model) == before
    again = model.hf_model(input_ids=ids[None], output_hidden_states=True)
    assert torch.equal(plain.logits, again.logits)
    assert len(again.hidden_states) == NUM_LAYERS + 1
    assert all(map(torch.equal, plain.hidden_states, again.hidden_states))
    again.logits.sum().backward()
    linked = link(model, PROMPT, [], parse_selector("full"), spare_tokens=0, logits_to_keep=PROMPT.num_tokens)
    torch.testing.assert_close(linked.logits, again.logits[0].detach(), atol=1e-4, rtol=1e-4)


def raising(*_: object, **__: object) -> torch.Tensor:
    raise UnsupportedModelError("as asked")


def placed_by(model: LanguageModel) -> Linking:
    """Some KV, placed without the function that the test breaks."""
    cache = model.new_cache(PROMPT.num_tokens)
    cache.keys.normal_()
    cache.values.normal_()
    cache.advance(PROMPT.suffix_start)
    return Linking(model, PROMPT, tuple(spans(PROMPT, ())), cache)


def test_a_layer_that_is_not_there() -> None:
    model = make_model("llama")
    rows = model.positions(0, 5)
    with pytest.raises(ValueError, match="layer 3: expected 0 to 2"):
        model.keys_values(model.ids((1, 2, 3, 4, 5)), rows, model.new_cache(5), NUM_LAYERS)


def test_threads_do_not_meet() -> None:
    model = make_model("llama")
    stored = encode_all(model, PROMPT)
    texts = ["cacheblend:0.2", "query:0.2", "lego:4+query:0.1", "auto:0.3"]
    alone = {t: link(model, PROMPT, stored, parse_selector(t), spare_tokens=0).logits for t in texts}
    together: dict[tuple[str, int], torch.Tensor] = {}

    def run(text: str, turn: int) -> None:
        together[text, turn] = link(model, PROMPT, stored, parse_selector(text), spare_tokens=0).logits

    threads = [threading.Thread(target=run, args=(text, turn)) for turn in range(3) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) == 12
    for (text, _), logits in together.items():
        torch.testing.assert_close(logits, alone[text], atol=1e-5, rtol=1e-5)
