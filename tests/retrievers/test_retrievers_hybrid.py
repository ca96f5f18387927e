import pytest
from langchain_tests.integration_tests import RetrieversIntegrationTests
from word_embeddings import WordEmbeddings

from epic_rag.retrievers import (
    ConvexCombination,
    DenseIndex,
    HybridIndex,
    LexicalIndex,
    PassageIndex,
    PassageRetriever,
    ReciprocalRanks,
)


@pytest.fixture
def index(put_texts):
    with PassageIndex(None) as index:
        put_texts(index, "animals", "red fish swim", "blue birds fly", "white cats sleep")
        put_texts(index, "lands", "日本語の文書です", "fish are caught at sea")
        yield index


@pytest.fixture
def hybrid(index):
    return HybridIndex((LexicalIndex(index), DenseIndex(index, WordEmbeddings())))


@pytest.mark.parametrize("fusion", [None, ReciprocalRanks(), ConvexCombination((0.5, 0.5))])
def test_scores_are_those_of_both_fused(index, fusion):
    hybrid = HybridIndex((LexicalIndex(index), DenseIndex(index, WordEmbeddings())), fusion)
    rankings = [{p.id: score for p, score in search.search("red fish", 100)} for search in hybrid.searches]
    expected = (fusion or ConvexCombination())(rankings)
    found = hybrid.search("red fish", 9)
    assert {passage.id: score for passage, score in found} == expected
    assert [score for _, score in found] == sorted(expected.values(), reverse=True)
    assert found[0][0].text == "red fish swim"
    assert found[0][1] == (2 / 61 if fusion == ReciprocalRanks() else pytest.approx(1))


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


def test_a_fusion_for_another_number_of_searches_is_refused(index):
    with pytest.raises(ValueError, match="expected 2 rankings, one a weight, got 1"):
        HybridIndex((LexicalIndex(index),))
    assert HybridIndex((LexicalIndex(index),), ReciprocalRanks()).search("fish", 1)[0][1] == 1 / 61


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
