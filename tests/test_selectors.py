"""Names, positions and sums of selectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_tiny

from epic_rag.ask import AskOptions
from epic_rag.encode import Encoder
from epic_rag.errors import ConfigError
from epic_rag.link import link, place, spans
from epic_rag.prompt import Prompt
from epic_rag.selectors import AutoSelector, ChunkSpan, Linking, OneRound, parse_selector

MODEL = make_tiny("llama")
CHUNKS = (ChunkSpan(10, 20), ChunkSpan(20, 22), ChunkSpan(22, 40, is_exact=True), ChunkSpan(40, 41))
PROMPT = Prompt(
    tuple(range(10)), tuple(tuple(range(50, 50 + c.stop - c.start)) for c in CHUNKS), tuple(range(100, 107))
)


def unplaced(chunks: tuple[ChunkSpan, ...] = CHUNKS) -> Linking:
    return Linking(MODEL, PROMPT, chunks, MODEL.new_cache(0))


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("none", []),
        ("lego:0", []),
        ("lego:4", [10, 11, 12, 13, 20, 21, 40]),
        ("lego:1000", [*range(10, 22), 40]),
        ("full", list(range(41))),
        ("lego:1+lego:2", [10, 11, 20, 21, 40]),
        ("none+lego:1", [10, 20, 40]),
    ],
)
def test_positions(text: str, positions: list[int]) -> None:
    selector = parse_selector(text)
    assert selector.name == text
    assert isinstance(selector, OneRound)
    selection = selector.select(unplaced())
    assert list(selection.positions) == positions
    assert (selection.cost_rows, selection.is_last) == (0.0, True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cacheblend:0.15", "cacheblend:0.15"),
        ("cacheblend:15%", "cacheblend:0.15"),
        (" query:.05 ", "query:0.05"),
        ("query:1", "query:1"),
        ("query-plain:2.5%", "query-plain:0.025"),
        ("auto", "auto:0.15"),
        ("auto:100%", "auto:1"),
        ("lego:4 + query:5%", "lego:4+query:0.05"),
        ("lego:4+query:0.05+cacheblend:0.1", "lego:4+query:0.05+cacheblend:0.1"),
    ],
)
def test_names_can_be_written_again(text: str, name: str) -> None:
    selector = parse_selector(text)
    assert selector.name == name
    assert selector == parse_selector(name)
    assert selector.needs_stored_kv
    assert AskOptions(selector=text).selector == text


@pytest.mark.parametrize(
    "text", ["", "lego", "lego:", "lego:-1", "lego:x", "FULL", "lego:9999999", "+", "lego:4+", "lego:4+magic", "query"]
)
def test_unknown_selectors_are_refused_with_the_list(text: str) -> None:
    known = "none, lego:K, full, cacheblend:R, query:R, query-plain:R, auto, auto:R, or several joined by +"
    with pytest.raises(ConfigError) as error:
        parse_selector(text)
    assert f"unknown selector '{text}': expected one of {known}" in str(error.value)


@pytest.mark.parametrize("name", ["cacheblend", "query", "query-plain", "auto"])
@pytest.mark.parametrize("share", ["", "0", "0%", "-0.1", "1.01", "101%", "nan", "inf", "1e-3", "x", "0.1.2", "%"])
def test_shares_that_cannot_be(name: str, share: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_selector(f"{name}:{share}")
    expected = f"selector '{name}:{share}': expected a share above 0 and at most 1, such as 0.15 or 15%"
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("full+lego:4", "selector 'full' cannot be joined with others: it computes everything already; use it alone"),
        ("lego:4+auto", "selector 'auto:0.15' cannot be joined with others: it chooses in rounds of its own"),
    ],
)
def test_what_cannot_be_joined(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_selector(text)
    assert str(error.value).startswith(why)


def test_a_sum_is_the_union_chosen_on_the_kv_as_placed_and_costs_what_its_parts_cost() -> None:
    cache = MODEL.new_cache(PROMPT.num_tokens)
    stored = [Encoder(MODEL, ()).encode(PROMPT.prefix_ids), *map(Encoder(MODEL, (1, 2)).encode, PROMPT.chunk_ids)]
    place(MODEL, stored, cache)
    linking = Linking(MODEL, PROMPT, tuple(spans(PROMPT, (1, 2))), cache)
    names = ("lego:4", "query:0.3", "cacheblend:0.1")
    parts = [parse_selector(name).select(linking) for name in names]  # type: ignore[attr-defined]
    together = parse_selector("+".join(names)).select(linking)  # type: ignore[attr-defined]
    assert together.positions == tuple(sorted({p for part in parts for p in part.positions}))
    assert [part.cost_rows > 0 for part in parts] == [False, True, True]
    assert together.cost_rows == pytest.approx(sum(part.cost_rows for part in parts))
    assert max(len(part.positions) for part in parts) < len(together.positions), "no part holds the others"


DYNAMIC = ("cacheblend:0.2", "query:0.2", "query-plain:0.2", "lego:4+query:0.2", "auto")


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("is_exact", [False, True])
def test_where_there_is_nothing_to_choose_from_nothing_is_computed_for_it(name: str, is_exact: bool) -> None:
    """No passage, or a single one right behind what it was encoded behind."""
    prompt = Prompt(PROMPT.prefix_ids, PROMPT.chunk_ids[:1] if is_exact else (), PROMPT.suffix_ids)
    encoder = Encoder(MODEL, PROMPT.prefix_ids)
    stored = [Encoder(MODEL, ()).encode(PROMPT.prefix_ids), *map(encoder.encode, prompt.chunk_ids)]
    one, none = (
        link(MODEL, prompt, stored, parse_selector(text), spare_tokens=0, compile_prefix_ids=PROMPT.prefix_ids)
        for text in (name, "none")
    )
    assert (one.num_recomputed, one.selection_rows) == (len(PROMPT.suffix_ids), 0.0)
    assert torch.equal(one.logits, none.logits)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[ChunkSpan, ...]:
    start, found = 10, []
    for size, is_exact in draw(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=6)):
        found.append(ChunkSpan(start, start + size, is_exact))
        start += size
    return tuple(found)


@given(laid_out(), st.floats(0.001, 1.0), st.integers(0, 60))
def test_shares_and_heads_of_any_chunks(chunks: tuple[ChunkSpan, ...], share: float, k: int) -> None:
    linking = unplaced(chunks)
    everything = [p for c in chunks for p in range(c.start, c.stop) if not c.is_exact]
    assert linking.open_positions == everything
    count = linking.count(share)
    assert 0 <= count <= len(everything)
    assert abs(count - share * len(everything)) <= 0.5 or count == 1
    assert (count == 0) == (not everything)
    assert linking.count(1.0) == len(everything)
    heads = parse_selector(f"lego:{k}").select(linking).positions  # type: ignore[attr-defined]
    assert list(heads) == [p for c in chunks if not c.is_exact for p in list(range(c.start, c.stop))[:k]]


def test_auto_is_bounded_by_cacheblends_share() -> None:
    assert parse_selector("auto") == AutoSelector(0.15)
