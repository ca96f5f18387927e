"""Measures against values worked out by hand."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.evaluation.measures import (
    agreement,
    answer_measures,
    contains,
    exact_match,
    f1,
    is_first,
    kl,
    recall,
    rouge_l,
    token_nll,
)

ONE = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
OTHER = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64).log()


def test_kl_agreement_and_nll() -> None:
    # .5 ln(.5/.25) + .25 ln(.25/.5) + 0 = .25 ln 2
    assert kl(ONE, OTHER).tolist() == pytest.approx([0.25 * log(2), 0.0])
    assert agreement(ONE, OTHER) == 0.5
    assert token_nll(ONE, torch.tensor([1, 2])).tolist() == pytest.approx([log(4), -log(0.8)])


def test_kl_is_not_symmetric() -> None:
    one, other = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert float(kl(one, other)) == pytest.approx(0.9 * log(1.8) + 0.1 * log(0.2))
    assert float(kl(other, one)) == pytest.approx(0.5 * log(5 / 9) + 0.5 * log(5))


def test_a_tie_is_wrong() -> None:
    assert is_first(-1.0, [-2.0, -1.5, -3.0]) == 1
    assert is_first(-1.0, [-2.0, -1.0, -3.0]) == 0
    assert is_first(-1.0, [-0.5, -2.0, -3.0]) == 0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("The Eiffel Tower!", ["Eiffel tower"], (1.0, 1.0, 1.0)),
        ("It is the Eiffel Tower in Paris.", ["Eiffel Tower"], (0.0, 4 / 8, 1.0)),  # 6 words, 2 of them wanted
        ("Eiffel", ["Eiffel Tower", "the tower"], (0.0, 2 / 3, 0.0)),
        ("15 men", ["5"], (0.0, 0.0, 0.0)),
        ("there are 5 men", ["6", "5 men"], (0.0, 2 * 2 / 6, 1.0)),
        ("red red green", ["red green green"], (0.0, 2 * 2 / 6, 0.0)),
        ("", ["Paris"], (0.0, 0.0, 0.0)),
        ("他住在北京。", ["北京"], (0.0, 2 * 2 / 7, 1.0)),
        ("北京", ["上海", "北京"], (1.0, 1.0, 1.0)),
    ],
)
def test_words_in_common(answer: str, gold: list[str], expected: tuple[float, float, float]) -> None:
    assert (exact_match(answer, gold), f1(answer, gold), contains(answer, gold)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("police killed the gunman", "police kill the gunman", 0.75),  # the example of the ROUGE paper, with F1
        ("the gunman kill police", "police kill the gunman", 0.5),
        ("the gunman police killed", "police killed the gunman", 0.5),
        ("Police-killed, the GUNMAN.", "police killed the gunman", 1.0),
        ("nothing", "police killed the gunman", 0.0),
        ("", "police", 0.0),
        ("a b c d e", "b d", 2 * 2 / 7),
    ],
)
def test_rouge_l(answer: str, gold: str, expected: float) -> None:
    assert rouge_l(answer, [gold, "zzz"]) == pytest.approx(expected)


def longest_common(one: list[int], other: list[int]) -> int:
    """The definition, read aloud."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest_common(one[1:], other[1:])
    return max(longest_common(one[1:], other), longest_common(one, other[1:]))


@given(st.lists(st.integers(0, 2), max_size=7), st.lists(st.integers(0, 2), max_size=7))
def test_rouge_l_is_the_definition(one: list[int], other: list[int]) -> None:
    common = longest_common(one, other)
    expected = 2 * common / (len(one) + len(other)) if common else 0.0
    assert rouge_l(" ".join(map(str, one)), [" ".join(map(str, other))]) == pytest.approx(expected)


def test_recall_counts_each_part_by_itself() -> None:
    assert recall("It was 17, then 42.", ["42", "17", "4", "99"]) == 0.5
    assert answer_measures("17 42", ["17, 42"], ["17", "42"])["recall"] == 1.0


def test_all_by_name() -> None:
    found = answer_measures("in Paris", ["Paris", "France"])
    assert found == pytest.approx({"em": 0.0, "f1": 2 / 3, "contains": 1.0, "rouge_l": 2 / 3})
