"""The real data sets, where they are: how many items, and in how many the gold passages hold the answer."""

import os
from pathlib import Path

import pytest
from tiny_models import make_tokenizer

from epic_rag.evaluation.tasks import open_task
from epic_rag.evaluation.tasks.passages import holds
from epic_rag.model.tokens import TextTokenizer

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("EPIC_RAG_TEST_DATA", ROOT / ".." / "shared" / "data"))
SETS = ["xquad:8", "hotpotqa", "musique", "dialogsum"]
pytestmark = [
    pytest.mark.data,
    *(
        pytest.mark.skipif(
            not (DATA / name).is_dir(), reason=f"no evaluation data {name}: set EPIC_RAG_TEST_DATA to its folder"
        )
        for name in ("xquad", "hotpotqa", "musique", "dialogsum")
    ),
]


@pytest.mark.parametrize(
    ("spec", "items", "corpus", "known", "held"),
    [
        ("xquad:8", 1190, 240, 1190, 1190),
        ("xquad:8:zh", 1190, 240, 1190, 1190),
        ("xquad:16:ar/es", 1190, 240, 1190, 1190),
        ("hotpotqa", 100, 994, 100, 91),  # the other nine answer yes or no
        ("musique", 150, 1255, 102, 102),
        ("dialogsum", 120, 128, 120, 0),
    ],
)
def test_gold_holds_the_answer(spec: str, items: int, corpus: int, known: int, held: int) -> None:
    task = open_task(spec, data=DATA)
    found = [
        (spec != "hotpotqa" or item.answers[0] not in ("yes", "no"))
        and any(item.answers[0].casefold() in item.passages[place].casefold() for place in item.gold)
        for item in task.items
    ]
    assert (len(task.items), len(task.corpus)) == (items, corpus)
    assert sum(bool(item.gold) for item in task.items) == known
    assert sum(found) == held


@pytest.mark.parametrize("spec", SETS)
def test_choices_are_wrong_and_only_yes_and_no_have_none(spec: str) -> None:
    items = open_task(spec, data=DATA).items
    for item in items:
        assert len({choice.casefold() for choice in item.choices} - {a.casefold() for a in item.answers}) == len(
            item.choices
        )
    without = [item.answers[0].casefold() for item in items if len(item.choices) != 3]
    assert set(without) <= {"yes", "no"}
    assert len({item.id for item in items}) == len(items)


def test_cut_into_pieces_the_answer_still_stands_in_most_gold() -> None:
    task = open_task("xquad:8", data=DATA, tokenizer=TextTokenizer(make_tokenizer()), chunk_tokens=300, count=240)
    whole = open_task("xquad:8", data=DATA, count=240).items
    held = sum(any(holds(item.passages[place], item.answers[0]) for place in item.gold) for item in task.items)
    assert held >= 0.9 * len(whole)
    assert sum(len(item.gold) for item in task.items) < 0.5 * sum(len(item.passages) for item in task.items)


def test_a_haystack_of_articles_meets_its_length() -> None:
    tokens = TextTokenizer(make_tokenizer())
    for name in ("ruler-multikey", "needle"):
        task = open_task(f"{name}:12000", data=DATA, tokenizer=tokens, chunk_tokens=800, count=5)
        for item in task.items:
            length = sum(len(tokens.encode(text)) for text in (*item.passages, item.question))
            assert abs(length - 12_000) <= 360
            assert any(item.answers[0] in item.passages[place] for place in item.gold)
