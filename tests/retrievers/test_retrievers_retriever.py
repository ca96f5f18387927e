import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from epic_rag.retrievers import LexicalIndex, PassageIndex, PassageRetriever


@pytest.fixture(scope="module")
def index():
    from epic_rag.retrievers import Passage

    with PassageIndex(None) as index:
        for source in ("a.md", "b.md"):
            passages = [
                Passage.create(
                    source=source, position=n, title="Fish", text=f"fish {n} of {source}", token_ids=[n], line=n
                )
                for n in range(6)
            ]
            index.put_document(source, "d", "t", "o", passages)
        yield index


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own suite."""

    @pytest.fixture(autouse=True)
    def _take_index(self, index):
        self._index = index

    @property
    def retriever_constructor(self):
        return PassageRetriever

    @property
    def retriever_constructor_params(self):
        return {"index": self._index}

    @property
    def retriever_query_example(self):
        return "fish"


def test_documents_carry_what_a_citation_needs(index):
    document = PassageRetriever(index=index, k=1).invoke("fish 3")[0]
    assert document.page_content == "fish 3 of a.md"
    assert document.id == next(passage.id for passage in index.passages() if passage.position == 3)
    score = document.metadata.pop("score")
    assert score > 0
    assert document.metadata == {"source": "a.md", "position": 3, "title": "Fish", "line": 3}


def test_the_default_is_eight_by_falling_score(index):
    scores = [document.metadata["score"] for document in PassageRetriever(index=index).invoke("fish a md")]
    assert len(scores) == 8
    assert scores == sorted(scores, reverse=True)


def test_nothing_found_is_an_empty_list(index):
    assert PassageRetriever(index=index).invoke("") == PassageRetriever(index=index).invoke("unheard") == []


def test_async_batch_and_threads_agree(index):
    retriever = PassageRetriever(index=index, k=3)
    expected = retriever.invoke("fish 2")
    assert asyncio.run(retriever.ainvoke("fish 2", k=1)) == expected[:1]
    assert retriever.batch(["fish 2"] * 4) == [expected] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(retriever.invoke, ["fish 2"] * 20)) == [expected] * 20


def test_k_below_one_is_refused(index):
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        PassageRetriever(index=index, k=0)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        PassageRetriever(index=index).invoke("fish", k=0)


def test_a_search_over_another_index_is_refused(index):
    own = LexicalIndex(index)
    assert PassageRetriever(index=index, search=own).search is own
    assert PassageRetriever(search=own).index is index
    with PassageIndex(None) as other, pytest.raises(ValidationError, match="search is over another index"):
        PassageRetriever(index=index, search=LexicalIndex(other))
    with pytest.raises(ValidationError, match="expected index or search, got neither"):
        PassageRetriever()


def test_a_filter_of_the_retriever_and_of_one_call(index):
    retriever = PassageRetriever(index=index, where={"source": "b.*"})
    assert {document.metadata["source"] for document in retriever.invoke("fish")} == {"b.md"}
    assert {document.metadata["source"] for document in retriever.invoke("fish", where={"source": "a.*"})} == {"a.md"}
    assert len(asyncio.run(retriever.ainvoke("fish", k=99, where={}))) == 12
    with pytest.raises(ValueError, match="where names 'author'"):
        retriever.invoke("fish", where={"author": "x"})
