"""A question answered with each kind of selector: what it reports, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.ask import AskOptions, ask
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.schema import Answer

QUESTION = "What is fact 3 of the telescope worth?"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = tmp_path_factory.mktemp("selectors")
    engine = make_engine(folder / "store")
    engine.model.eos_ids = frozenset()
    ingest(engine, [write_corpus(folder / "docs")])
    return engine


def answer(engine: Engine, selector: str, **options: object) -> Answer:
    *_, last = ask(engine, QUESTION, AskOptions(k=4, selector=selector, decode=DecodeOptions(6), **options))  # type: ignore[arg-type]
    assert isinstance(last, Answer)
    return last


def test_the_answer_tells_what_choosing_took(engine: Engine) -> None:
    suffix = len(engine.frame.suffix(engine.model.tokenizer.encode(QUESTION)))
    none, query = answer(engine, "none").tokens, answer(engine, "query:10%")
    assert (none.recomputed, none.selection) == (suffix, 0.0)
    context = none.context - suffix - len(engine.frame.prefix_ids)
    assert query.selector == "query:0.1"
    assert query.tokens.recomputed == suffix + round(0.1 * context)
    neutral = len(engine.frame.suffix(engine.model.tokenizer.encode("What do the passages say?")))
    assert query.tokens.selection == suffix + neutral
    told = query.to_dict()["tokens"]
    assert isinstance(told, dict)
    assert told["selection"] == suffix + neutral


def test_a_choice_of_everything_answers_as_a_full_prefill(engine: Engine) -> None:
    full = answer(engine, "full")
    for selector in ("cacheblend:1", "query:100%", "lego:4+query:1"):
        assert answer(engine, selector).answer == full.answer


@pytest.mark.parametrize("selector", ["cacheblend:0.1", "query:0.1", "lego:2+query:0.1", "auto:0.2"])
def test_a_budget_goes_with_every_selector(engine: Engine, selector: str) -> None:
    got = answer(engine, selector, budget=500, policy="roco")
    assert got.tokens.kept == 500
    assert got.selector == selector
    assert got.tokens.answer == 6
    assert got.warnings == ()
