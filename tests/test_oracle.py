"""The equations of position-independent reuse: they hold for every supported model, in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_models import SUPPORTED, make_tiny

from epic_rag.encode import Encoder
from epic_rag.encoding import exact_profile
from epic_rag.kernels.rerotate import rerotate_
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.uri import open_store
from epic_rag.link import link, place, spans
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt
from epic_rag.selectors import (
    FullSelector,
    LegoSelector,
    Linking,
    NoneSelector,
    OneRound,
    Selection,
    parse_selector,
)


class EverythingStored(OneRound):
    """Recompute every token although all KV is loaded: must equal a full prefill."""

    name = "everything"
    needs_stored_kv = True

    def select(self, linking: Linking) -> Selection:
        return Selection(tuple(position for chunk in linking.chunks for position in range(chunk.start, chunk.stop)))


def make_prompt(
    vocabulary: int = 250, sizes: Sequence[int] = (23, 41, 17), prefix: int = 9, suffix: int = 11
) -> Prompt:
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocabulary, (count,), generator=generator).tolist())

    return Prompt(ids(prefix), tuple(ids(size) for size in sizes), ids(suffix))


def encode_all(model: LanguageModel, prompt: Prompt, behind: Sequence[int] = ()) -> list[ChunkKV]:
    """Prefix and chunks; the chunks behind `behind`."""
    encoder = Encoder(model, behind)
    return [Encoder(model, ()).encode(prompt.prefix_ids), *map(encoder.encode, prompt.chunk_ids)]


def own_logits(model: LanguageModel, prompt: Prompt) -> torch.Tensor:
    """Logits of every position from transformers' own code, with nothing of ours active."""
    ids = model.ids(prompt.token_ids)[None]
    with torch.inference_mode():
        return model.hf_model(input_ids=ids, use_cache=False).logits[0].float()


def assert_same_logits(got: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    scale = float(expected.abs().max().clamp_min(1.0))
    assert float((got - expected).abs().max()) / scale < tolerance


@pytest.mark.parametrize("case", SUPPORTED)
def test_recomputing_everything_is_a_full_prefill(case: str) -> None:
    model, prompt = make_tiny(case), make_prompt()
    own = own_logits(model, prompt)[-11:]
    stored = encode_all(model, prompt)
    linked = link(model, prompt, stored, EverythingStored(), spare_tokens=0, logits_to_keep=11)
    # the prefix is not recomputed: it is exact; everything behind it is
    assert linked.num_recomputed == prompt.num_tokens - len(prompt.prefix_ids)
    assert_same_logits(linked.logits, own)
    full = link(model, prompt, [], FullSelector(), spare_tokens=0, logits_to_keep=11)
    assert full.num_recomputed == prompt.num_tokens
    assert_same_logits(full.logits, own)
    torch.testing.assert_close(linked.cache.keys[:, :, : prompt.num_tokens], full.cache.keys, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(linked.cache.values[:, :, : prompt.num_tokens], full.cache.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", SUPPORTED)
def test_a_chunk_right_behind_the_prefix_it_was_encoded_with_is_exact(case: str) -> None:
    model, prompt = make_tiny(case), make_prompt(sizes=(37,))
    stored = encode_all(model, prompt, behind=prompt.prefix_ids)
    linked = link(model, prompt, stored, NoneSelector(), spare_tokens=0)
    assert linked.num_recomputed == len(prompt.suffix_ids)
    assert_same_logits(linked.logits, own_logits(model, prompt)[-1:])


def test_an_exact_chunk_is_not_recomputed() -> None:
    prompt = make_prompt()
    behind_prompt = spans(prompt, prompt.prefix_ids)
    assert [span.is_exact for span in behind_prompt] == [True, False, False]
    assert not any(span.is_exact for span in spans(prompt, (1, 2)))
    stored = encode_all(make_tiny("llama"), prompt, behind=prompt.prefix_ids)
    linked = link(
        make_tiny("llama"), prompt, stored, LegoSelector(4), spare_tokens=0, compile_prefix_ids=prompt.prefix_ids
    )
    assert linked.num_recomputed == 4 + 4 + len(prompt.suffix_ids)


@pytest.mark.parametrize("case", ["llama", "phi", "glm", "yarn-rope", "llama3-rope"])
def test_rotations_add_up(case: str) -> None:
    model = make_tiny(case)
    keys = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    rope, scale = model.rope, model.rope.attention_scaling

    def rotate(tensor: torch.Tensor, by: int) -> torch.Tensor:
        cos, sin = rope.angles(torch.full((5,), by))
        return rerotate_(tensor.clone(), cos / scale, sin / scale, interleaved=rope.interleaved)

    torch.testing.assert_close(rotate(rotate(keys, 7), 12), rotate(keys, 19), atol=1e-5, rtol=1e-5)
    assert torch.equal(rotate(keys, 0), keys)
    torch.testing.assert_close(rotate(keys, 300).norm(dim=-1), keys.norm(dim=-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", SUPPORTED)
def test_rotated_stored_keys_of_layer_0_are_fresh_keys(case: str) -> None:
    model, prompt = make_tiny(case), make_prompt()
    cache = model.new_cache(prompt.num_tokens)
    place(model, encode_all(model, prompt), cache)
    fresh = link(model, prompt, [], FullSelector(), spare_tokens=0).cache
    stop = prompt.suffix_start
    torch.testing.assert_close(cache.keys[0, :, :stop], fresh.keys[0, :, :stop], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache.values[0, :, :stop], fresh.values[0, :, :stop], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_and_rotated_once_is_bit_for_bit_what_the_forward_writes(dtype: torch.dtype) -> None:
    """Position-free keys lose nothing: rotating them is the very rounding that a forward at that place does."""
    model, prompt = make_tiny("llama", dtype), make_prompt(sizes=(33,))
    encoder = Encoder(model, prompt.prefix_ids)
    kv = encoder.encode(prompt.chunk_ids[0])
    cache = model.new_cache(prompt.num_tokens)
    place(model, [Encoder(model, ()).encode(prompt.prefix_ids), kv], cache)
    again = model.new_cache(prompt.num_tokens)
    model.forward(model.ids(prompt.prefix_ids), model.positions(0, 9), again)
    model.forward(model.ids(prompt.chunk_ids[0]), model.positions(9, 42), again)
    assert torch.equal(cache.keys[:, :, :42], again.keys[:, :, :42])
    assert torch.equal(cache.values[:, :, :42], again.values[:, :, :42])


@pytest.mark.parametrize("selector", ["none", "lego:4"])
def test_memory_and_disk_give_the_same_bits(selector: str, tmp_path: Path) -> None:
    model, prompt = make_tiny("qwen2", torch.bfloat16), make_prompt()
    profile = exact_profile(model)
    results = []
    for uri in ("memory://", str(tmp_path / "store")):
        with open_store(uri) as store:
            fresh = encode_all(model, prompt)
            ids = (prompt.prefix_ids, *prompt.chunk_ids)
            for kv, tokens in zip(fresh, ids, strict=True):
                store.put(chunk_key(profile, tokens), kv, profile=profile, encode_seconds=0.1)
            hits = [store.get(chunk_key(profile, tokens), tokens) for tokens in ids]
            assert all(hit is not None for hit in hits)
            linked = link(model, prompt, [hit.kv for hit in hits if hit], parse_selector(selector), spare_tokens=0)
            results.append((linked.logits, linked.cache.keys.clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_order_of_equal_chunks_changes_nothing() -> None:
    model, prompt = make_tiny("llama"), make_prompt(sizes=(20, 20))
    twice = Prompt(prompt.prefix_ids, (prompt.chunk_ids[0],) * 2, prompt.suffix_ids)
    kv = encode_all(model, twice)
    one = link(model, twice, kv, NoneSelector(), spare_tokens=0).logits
    other = link(model, twice, [kv[0], kv[2], kv[1]], NoneSelector(), spare_tokens=0).logits
    assert torch.equal(one, other)


def test_reuse_without_recomputation_is_not_a_full_prefill() -> None:
    """The control of the tests above: the difference they could miss is there to be seen."""
    model, prompt = make_tiny("llama"), make_prompt()
    stored = encode_all(model, prompt)
    reused = link(model, prompt, stored, NoneSelector(), spare_tokens=0).logits
    assert float((reused - own_logits(model, prompt)[-1:]).abs().max()) > 1e-2


@pytest.mark.model
def test_the_real_model_obeys_the_same_equations(smollm_fp32: LanguageModel) -> None:
    model = smollm_fp32
    prompt = make_prompt(vocabulary=40_000, sizes=(120, 80, 64), prefix=24, suffix=20)
    own = own_logits(model, prompt)
    linked = link(model, prompt, encode_all(model, prompt), EverythingStored(), spare_tokens=0)
    assert float((linked.logits - own[-1:]).abs().max()) < 1e-3
    single = Prompt(prompt.prefix_ids, prompt.chunk_ids[:1], prompt.suffix_ids)
    exact = link(
        model, single, encode_all(model, single, behind=single.prefix_ids), parse_selector("lego:4"), spare_tokens=0,
        compile_prefix_ids=single.prefix_ids,
    )  # fmt: skip
    assert exact.num_recomputed == len(single.suffix_ids)
    assert float((exact.logits - own_logits(model, single)[-1:]).abs().max()) < 1e-3
