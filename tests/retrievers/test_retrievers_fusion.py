from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epic_rag.retrievers import ConvexCombination, ReciprocalRanks

ORDERS = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), max_size=4)
SCORES = st.dictionaries(st.integers(0, 30), st.floats(-1, 1).map(lambda score: round(score, 6)), max_size=20)
WEIGHTS = st.tuples(st.integers(0, 9), st.integers(1, 9))


def ranked(order):
    """Items of a ranking whose scores do not matter."""
    return dict.fromkeys(order, 0.0)


@given(ORDERS, st.integers(0, 100))
def test_reciprocal_ranks_are_those_of_the_formula(orders, constant):
    exact = {
        item: sum(Fraction(1, constant + order.index(item) + 1) for order in orders if item in order)
        for order in orders
        for item in order
    }
    fused = ReciprocalRanks(constant)(list(map(ranked, orders)))
    assert fused == pytest.approx({item: float(score) for item, score in exact.items()})


@given(ORDERS)
def test_the_order_of_the_rankings_does_not_matter_to_reciprocal_ranks(orders):
    rankings = list(map(ranked, orders))
    assert ReciprocalRanks()(rankings[::-1]) == pytest.approx(ReciprocalRanks()(rankings))


@given(ORDERS, st.integers(0, 30))
def test_one_more_first_place_raises_nothing_but_its_item(orders, item):
    rankings = list(map(ranked, orders))
    before, after = ReciprocalRanks()(rankings), ReciprocalRanks()([*rankings, {item: 1.0}])
    assert after.pop(item) > before.pop(item, 0.0)
    assert after == before


@given(SCORES, SCORES, WEIGHTS)
def test_a_combination_is_that_of_the_formula(first, second, weights):
    assume(all(not ranking or max(ranking.values()) > -1 for ranking in (first, second)))
    fused = ConvexCombination(weights, (-1.0, -1.0))([first, second])
    exact = {
        item: sum(
            Fraction(weight, sum(weights)) * (Fraction(ranking[item]) + 1) / (Fraction(max(ranking.values())) + 1)
            for ranking, weight in zip((first, second), weights, strict=True)
            if item in ranking
        )
        for item in first | second
    }
    assert fused == pytest.approx({item: float(score) for item, score in exact.items()})
    assert all(0 <= score <= 1 + 1e-9 for score in fused.values())


def test_the_best_of_both_gets_one_and_what_one_lacks_counts_there_as_the_least():
    lexical, dense = {"both": 8.0, "words": 4.0}, {"both": 0.5, "meaning": 0.2}
    assert ConvexCombination()([lexical, dense]) == pytest.approx(
        {"both": 1, "words": 0.05, "meaning": 0.9 * 1.2 / 1.5}
    )


def test_a_search_that_found_nothing_or_only_the_least_adds_nothing():
    combine = ConvexCombination()
    assert combine([{}, {}]) == {}
    assert combine([{}, {"a": 0.0}]) == {"a": 0.9}
    assert combine([{"a": 2.0}, {"b": -1.0}]) == {"a": 0.1, "b": 0.0}


@pytest.mark.parametrize(
    ("weights", "least", "message"),
    [
        ((1.0,), (0.0, -1.0), "expected a least score for each weight"),
        ((0.5, -0.5), (0.0, -1.0), "weights are 0 or more and not all 0"),
        ((0.0, 0.0), (0.0, -1.0), "weights are 0 or more and not all 0"),
        ((float("nan"), 1.0), (0.0, -1.0), "weights are 0 or more and not all 0"),
        ((), (), "weights are 0 or more and not all 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, least, message):
    with pytest.raises(ValueError, match=message):
        ConvexCombination(weights, least)


def test_another_number_of_rankings_is_refused():
    with pytest.raises(ValueError, match="expected 2 rankings, one a weight, got 3"):
        ConvexCombination()([{}, {}, {}])
