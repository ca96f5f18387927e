"""The question's blocks against a slow choice from eager attentions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_link import SlowLink, encode_all, make_model, make_prompt
from tiny_models import make_tiny

from epic_rag.config import NEUTRAL_QUESTION
from epic_rag.link import link, place, spans
from epic_rag.model import LanguageModel
from epic_rag.prompt import prompt_frame
from epic_rag.selectors import ChunkSpan, Linking, PlainQuerySelector, QuerySelector, parse_selector
from epic_rag.selectors.query import BLOCK_TOKENS, by_blocks
from epic_rag.selectors.scratch import ScratchCache

PROMPT = make_prompt(sizes=(23, 41, 17, 64))
START, STOP = len(PROMPT.prefix_ids), PROMPT.suffix_start
ARCHITECTURES = ("llama", "qwen2")


def neutral(model: LanguageModel) -> tuple[int, ...]:
    return prompt_frame(model.tokenizer).suffix(model.tokenizer.encode(NEUTRAL_QUESTION))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("plain", [False, True])
def test_it_chooses_what_a_slow_one_chooses(architecture: str, share: float, plain: bool) -> None:
    model, slow = make_model(architecture), SlowLink(architecture, PROMPT)
    usual = None if plain else neutral(model)
    expected = sorted(slow.ranked(usual)[: round(share * (STOP - START))])
    selector = PlainQuerySelector(share) if plain else QuerySelector(share)
    linking = placed(model)
    selection = selector.select(linking)
    assert selection.positions == tuple(expected)
    assert selection.cost_rows == len(PROMPT.suffix_ids) + len(usual or ())
    linked = link(model, PROMPT, encode_all(model, PROMPT), selector, spare_tokens=0, logits_to_keep=11)
    torch.testing.assert_close(linked.logits, slow.linked(expected).logits[-11:], atol=1e-4, rtol=1e-4)
    assert linked.num_recomputed == len(expected) + len(PROMPT.suffix_ids)
    assert linked.selection_rows == selection.cost_rows


def placed(model: LanguageModel, behind: tuple[int, ...] = (1, 2, 3)) -> Linking:
    cache = model.new_cache(PROMPT.num_tokens)
    place(model, encode_all(model, PROMPT, behind), cache)
    return Linking(model, PROMPT, tuple(spans(PROMPT, behind)), cache)


@pytest.mark.parametrize("case", ["llama", "qwen2", "phi", "glm"])
@pytest.mark.parametrize("name", ["query:1", "query-plain:100%"])
def test_everything_chosen_is_a_full_prefill(case: str, name: str) -> None:
    model = make_tiny(case)
    full = link(model, PROMPT, [], parse_selector("full"), spare_tokens=0, logits_to_keep=11)
    linked = link(model, PROMPT, encode_all(model, PROMPT), parse_selector(name), spare_tokens=0, logits_to_keep=11)
    torch.testing.assert_close(linked.logits, full.logits, atol=1e-4, rtol=1e-4)


def test_choosing_leaves_the_placed_cache_as_it_is() -> None:
    model = make_model("llama")
    linking, twin = placed(model), placed(model)
    linking.cache.keys[:, :, STOP:] = twin.cache.keys[:, :, STOP:] = 7.0
    QuerySelector(0.3).select(linking)
    assert torch.equal(linking.cache.keys, twin.cache.keys)
    assert torch.equal(linking.cache.values[:, :, :STOP], twin.cache.values[:, :, :STOP])
    assert (linking.cache.length, linking.cache.next_position) == (STOP, STOP), "the neutral question is longer"


def test_a_pass_takes_the_room_of_one_layer() -> None:
    model = make_model("llama")
    linking = placed(model)
    scratch = ScratchCache(linking.cache, STOP + 5)
    one_layer = model.num_kv_heads * (STOP + 5) * model.head_dim * 4
    assert scratch.keys.untyped_storage().nbytes() == scratch.values.untyped_storage().nbytes() == one_layer
    assert scratch.keys.shape == (model.num_layers, model.num_kv_heads, STOP + 5, model.head_dim)


def test_another_question_chooses_other_blocks() -> None:
    model, other = make_model("llama"), make_prompt(sizes=(23, 41, 17, 64), seed=4)
    linking = placed(model)
    asked = type(PROMPT)(PROMPT.prefix_ids, PROMPT.chunk_ids, other.suffix_ids)
    twin = Linking(model, asked, linking.chunks, linking.cache)
    assert QuerySelector(0.2).select(linking) != QuerySelector(0.2).select(twin)


def test_what_every_question_attends_is_not_chosen_for_that() -> None:
    """The neutral question itself, asked: every ratio is one, and of equals the first blocks are taken."""
    model = make_model("llama")
    linking = placed(model)
    asked = Linking(
        model, type(PROMPT)(PROMPT.prefix_ids, PROMPT.chunk_ids, neutral(model)), linking.chunks, linking.cache
    )
    ranked, _ = QuerySelector(0.2).ranked(asked)
    assert ranked == list(range(START, STOP))
    assert PlainQuerySelector(0.2).ranked(asked)[0] != ranked


@st.composite
def chunks(draw: st.DrawFn) -> list[ChunkSpan]:
    start, found = draw(st.integers(0, 40)), []
    for size, is_exact in draw(st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=1, max_size=6)):
        found.append(ChunkSpan(start, start + size, is_exact))
        start += size
    return found


@given(chunks(), st.randoms(use_true_random=False))
def test_blocks_lie_in_one_chunk_and_stand_best_first(found: list[ChunkSpan], random) -> None:
    values = [random.choice([0.0, 0.5, 1.0]) for _ in range(found[-1].stop - found[0].start)]
    positions = by_blocks(torch.tensor(values), found)
    everything = [p for c in found if not c.is_exact for p in range(c.start, c.stop)]
    assert sorted(positions) == everything, "each open position once"
    told = []
    while positions:
        chunk = next(c for c in found if c.start <= positions[0] < c.stop)
        assert (positions[0] - chunk.start) % BLOCK_TOKENS == 0
        block = list(range(positions[0], min(positions[0] + BLOCK_TOKENS, chunk.stop)))
        assert positions[: len(block)] == block
        told.append((-sum(values[p - found[0].start] for p in block) / len(block), block[0]))
        positions = positions[len(block) :]
    assert told == sorted(told), "best first, of equals the first in the prompt"
