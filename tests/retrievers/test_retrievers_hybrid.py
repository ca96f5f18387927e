from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_tests.integration_tests import RetrieversIntegrationTests
from word_embeddings import WordEmbeddings

from epic_rag.retrievers import DenseIndex, HybridIndex, LexicalIndex, PassageIndex, PassageRetriever
from epic_rag.retrievers.hybrid import reciprocal_ranks

RANKINGS = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), max_size=4)


@pytest.fixture
def index(put_texts):
    with PassageIndex(None) as index:
        put_texts(index, "animals", "red fish swim", "blue birds fly", "white cats sleep")
        put_texts(index, "lands", "日本語の文書です", "fish are caught at sea")
        yield index


@pytest.fixture
def hybrid(index):
    return HybridIndex((LexicalIndex(index), DenseIndex(index, WordEmbeddings())))


@given(RANKINGS, st.integers(0, 100))
def test_fused_scores_are_those_of_the_formula(rankings, constant):
    scores = reciprocal_ranks(rankings, constant)
    exact = {
        item: sum(Fraction(1, constant + ranking.index(item) + 1) for ranking in rankings if item in ranking)
        for ranking in rankings
        for item in ranking
    }
    assert scores == pytest.approx({item: float(score) for item, score in exact.items()})


@given(RANKINGS)
def test_the_order_of_the_rankings_does_not_matter(rankings):
    assert reciprocal_ranks(rankings[::-1]) == pytest.approx(reciprocal_ranks(rankings))


@given(st.lists(st.integers(), unique=True, min_size=1), st.integers(1, 4))
def test_rankings_that_agree_keep_their_order(ranking, count):
    scores = reciprocal_ranks([ranking] * count)
    assert sorted(ranking, key=lambda item: -scores[item]) == ranking


@given(RANKINGS, st.integers(0, 30))
def test_one_more_first_place_raises_nothing_but_its_item(rankings, item):
    before, after = reciprocal_ranks(rankings), reciprocal_ranks([*rankings, [item]])
    assert after.pop(item) > before.pop(item, 0.0)
    assert after == before


def test_scores_are_the_sum_over_both(index, hybrid):
    expected = reciprocal_ranks([[p.id for p, _ in search.search("red fish", 100)] for search in hybrid.searches])
    found = hybrid.search("red fish", 9)
    assert {passage.id: score for passage, score in found} == expected
    assert [score for _, score in found] == sorted(expected.values(), reverse=True)
    assert found[0][0].text == "red fish swim"
    assert found[0][1] == 2 / 61


def test_fewer_are_the_first_of_more(hybrid):
    found = hybrid.search("fish at sea", 5)
    assert [hybrid.search("fish at sea", k) for k in range(-1, 6)] == [[], *(found[:k] for k in range(6))]


def test_equal_scores_come_by_source_and_position(put_texts):
    with PassageIndex(None) as index:
        for source in ("b", "a"):
            put_texts(index, source, source)

        class Fixed:
            def __init__(self, order):
                self.index, self.order = index, order

            def search(self, query, k, where=None):
                return [(index.document_passages(source)[0], 1.0) for source in self.order]

        found = HybridIndex((Fixed("ab"), Fixed("ba"))).search("x", 2)
    assert [passage.source for passage, _ in found] == ["a", "b"]


def test_every_part_is_filtered(hybrid):
    found = hybrid.search("fish", 9, {"source": "lands", "text": "*sea*"})
    assert [passage.text for passage, _ in found] == ["fish are caught at sea"]


def test_nothing_asked_finds_nothing(hybrid):
    assert hybrid.search(" ", 3) == []


def test_refresh_prepares_every_part(index, hybrid):
    hybrid.refresh()
    assert all(search._snapshot.state == index.state for search in hybrid.searches)


def test_parts_over_different_indexes_are_refused(index):
    with PassageIndex(None) as other, pytest.raises(ValueError, match="expected searches over one PassageIndex"):
        HybridIndex((LexicalIndex(index), LexicalIndex(other)))
    with pytest.raises(ValueError, match="got 0"):
        HybridIndex(())


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own suite."""

    @pytest.fixture(autouse=True)
    def _make_search(self, hybrid):
        self._search = hybrid

    @property
    def retriever_constructor(self):
        return PassageRetriever

    @property
    def retriever_constructor_params(self):
        return {"search": self._search}

    @property
    def retriever_query_example(self):
        return "fish"
