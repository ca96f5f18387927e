from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from corpus import make_rag
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableGenerator, RunnableParallel, RunnablePassthrough
from pydantic import Field

from epic_rag import EpicRAG
from epic_rag.ask import ask
from epic_rag.errors import ConfigError, EpicError
from epic_rag.kvstore.prefetch import Prefetch
from epic_rag.load import Loader

QUESTION = "What is fact 3 of the telescope worth?"


@pytest.fixture
def rag(tmp_path: Path) -> EpicRAG:
    return make_rag(tmp_path)


def test_a_string_or_a_dict_in_and_everything_out(rag: EpicRAG) -> None:
    out = rag.invoke(QUESTION)
    assert out == rag.invoke({"question": QUESTION}) | {"timings": out["timings"]}
    assert out["question"] == QUESTION
    assert out["context"][0].metadata["source"].endswith("telescope-2.txt")
    assert out["context"][0].metadata["tier"] == "disk"
    assert out["usage"]["output_tokens"] == 6
    assert out["usage"]["input_token_details"]["cache_read"] > 0
    assert out["timings"]["ttft_seconds"] > 0


def test_a_stream_yields_context_first_and_adds_up(rag: EpicRAG) -> None:
    parts = list(rag.stream(QUESTION))
    assert set(parts[0]) == {"question", "context", "answer"}
    assert all(set(part) == {"answer"} for part in parts[1:-1])
    assert set(parts[-1]) == {"timings", "usage", "warnings", "dropped"}
    assert "".join(part.get("answer", "") for part in parts) == rag.invoke(QUESTION)["answer"]


async def test_async_forms_give_the_same(rag: EpicRAG) -> None:
    expected = rag.invoke(QUESTION)["answer"]
    assert (await rag.ainvoke(QUESTION))["answer"] == expected
    parts = [part async for part in rag.astream(QUESTION)]
    assert "".join(part.get("answer", "") for part in parts) == expected
    answers = await asyncio.gather(*(rag.ainvoke(QUESTION) for _ in range(3)))
    assert {answer["answer"] for answer in answers} == {expected}


def test_batch_answers_as_one_by_one(rag: EpicRAG) -> None:
    questions = [QUESTION, "What is fact 1 of the bakery worth?", "And of the ferry?"]
    together = rag.batch(questions, {"max_concurrency": 3})
    assert [out["answer"] for out in together] == [rag.invoke(question)["answer"] for question in questions]


def test_it_composes_like_any_runnable(rag: EpicRAG) -> None:
    chain = rag | (lambda out: out["answer"]) | StrOutputParser()
    both = RunnableParallel(one=chain, two=rag).invoke(QUESTION)
    assert both["one"] == both["two"]["answer"]
    failing = EpicRAG(engine=rag.engine, budget="1B").with_fallbacks([rag], exceptions_to_handle=(EpicError,))
    assert failing.invoke(QUESTION)["answer"] == both["one"]


def test_callbacks_see_the_run(rag: EpicRAG) -> None:
    class Seen(BaseCallbackHandler):
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_chain_start(self, serialized: object, inputs: object, **_: object) -> None:
            self.events.append("start")

        def on_chain_end(self, outputs: object, **_: object) -> None:
            self.events.append("end")

        def on_chain_error(self, error: BaseException, **_: object) -> None:
            self.events.append("error")

    seen = Seen()
    rag.invoke(QUESTION, {"callbacks": [seen]})
    list(rag.stream(QUESTION, {"callbacks": [seen]}))
    with pytest.raises(ConfigError):
        rag.invoke("", {"callbacks": [seen]})
    assert seen.events == ["start", "end", "start", "end", "start", "error"]


class Fixed(BaseRetriever):
    """Somebody's own retriever."""

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        return [
            Document(page_content="The comet Harl returns in 2061.", metadata={"source": "sky.pdf"}, id="7"),
            Document(page_content="Its tail is blue."),
        ]


def test_any_retriever_will_do_and_its_passages_are_stored(rag: EpicRAG) -> None:
    own = EpicRAG(engine=rag.engine, retriever=Fixed(), max_tokens=4)
    first, second = own.invoke("When does Harl return?"), own.invoke("What colour is its tail?")
    assert [doc.metadata["source"] for doc in first["context"]] == ["sky.pdf", "document 2"]
    assert [doc.metadata["tier"] for doc in first["context"]] == ["encoded", "encoded"]
    assert [doc.metadata["tier"] for doc in second["context"]] == ["disk", "disk"]
    assert first["usage"]["input_token_details"]["cache_creation"] > 0


class Backwards(BaseDocumentCompressor):
    """A reranker that likes best what came last, and returns a piece of each text, as some do."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        pieces = [doc.model_copy(update={"page_content": doc.page_content[:9]}) for doc in reversed(documents)]
        strangers = [Document(page_content="made up")]
        return [*strangers, *(_scored(doc, 1 / (rank + 1)) for rank, doc in enumerate(pieces))]


def _scored(document: Document, score: float) -> Document:
    return Document(page_content=document.page_content, metadata={**document.metadata, "relevance_score": score})


def test_a_reranker_chooses_among_more_passages_and_their_kv_comes_meanwhile(
    rag: EpicRAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[int] = []
    real = Loader.prefetch

    def seen(self: Loader, chunks: Sequence[Sequence[int]]) -> Prefetch:
        ahead.append(len(chunks))
        return real(self, chunks)

    monkeypatch.setattr(Loader, "prefetch", seen)
    plain = EpicRAG(engine=rag.engine, k=8, max_tokens=2).invoke(QUESTION)["context"]
    got = EpicRAG(engine=rag.engine, k=2, max_tokens=2, reranker=Backwards()).invoke(QUESTION)["context"]
    assert [doc.page_content for doc in got] == [doc.page_content for doc in reversed(plain)][:2]
    assert [doc.metadata["score"] for doc in got] == [1.0, 0.5]
    assert {doc.metadata["tier"] for doc in got} == {"disk"}
    assert ahead == [len(plain)]
    own = EpicRAG(engine=rag.engine, retriever=Fixed(), reranker=Backwards(), k=1, max_tokens=2)
    assert [doc.page_content for doc in own.invoke("What is blue?")["context"]] == ["Its tail is blue.\n\n"]


@pytest.mark.parametrize("question", [{"query": "x"}, {"question": 5}, {}])
def test_input_of_another_shape_is_refused_in_words(rag: EpicRAG, question: object) -> None:
    with pytest.raises(ConfigError, match="expected a question as a string"):
        rag.invoke(question)  # type: ignore[arg-type]


class Odd(BaseRetriever):
    """Metadata of every kind."""

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        odd = {"score": None, "line": None, "position": "p.3", "title": None, "source": None}
        return [Document(page_content="broken \ud800 text", metadata=odd)]


def test_odd_metadata_and_broken_text_are_taken(rag: EpicRAG) -> None:
    out = EpicRAG(engine=rag.engine, retriever=Odd(), max_tokens=2).invoke("Anything?")
    assert out["context"][0].metadata | {"key": ""} == {
        "source": "document 1", "position": 0, "title": "", "line": 0, "score": 0.0, "key": "", "tier": "encoded",
    }  # fmt: skip
    assert out["warnings"] == []


def test_a_stream_behind_the_usual_steps_is_asked_the_whole_question(rag: EpicRAG) -> None:
    """Parallel steps hand over their dict key by key, and a model its text piece by piece."""
    history = [("human", "Is there a telescope?"), ("ai", "Yes.")]
    given = {"question": QUESTION, "chat_history": history}
    expected = rag.invoke({"question": QUESTION, "chat_history": history})["answer"]
    parallel = RunnableParallel(question=lambda x: x["question"], chat_history=lambda x: x["chat_history"])
    reversed_ = RunnableParallel(chat_history=lambda x: x["chat_history"], question=lambda x: x["question"])
    assigned = RunnablePassthrough.assign(chat_history=lambda _: history)

    def pieces(parts: Iterator[object]) -> Iterator[str]:
        list(parts)
        yield from (QUESTION[:9], QUESTION[9:])

    said = {"question": RunnableGenerator(pieces), "chat_history": lambda _: history}
    for steps in (parallel, reversed_, assigned, said):
        parts = list((steps | rag).stream(given))
        assert "".join(part.get("answer", "") for part in parts) == expected
        assert parts[0]["question"] == QUESTION


def test_no_input_at_all_is_refused_in_words(rag: EpicRAG) -> None:
    with pytest.raises(ConfigError, match="expected a question"):
        list(rag.transform(iter(())))


class AsyncOnly(Fixed):
    """A retriever whose client works on an event loop only."""

    loops: list[object] = Field(default_factory=list)

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        raise NotImplementedError("only async")

    async def _aget_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        self.loops.append(asyncio.get_running_loop())
        return Fixed._get_relevant_documents(self, query, run_manager=run_manager)


class AsyncBackwards(Backwards):
    """A reranker whose client works on an event loop only."""

    def compress_documents(self, *_: object, **__: object) -> Sequence[Document]:
        raise NotImplementedError("only async")

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        return Backwards.compress_documents(self, documents, query, callbacks)


async def test_retriever_reranker_and_callbacks_run_on_the_callers_loop(rag: EpicRAG) -> None:
    loops: list[object] = []

    class Seen(AsyncCallbackHandler):
        async def on_chat_model_start(self, *_: object, **__: object) -> None:
            loops.append(asyncio.get_running_loop())

        async def on_llm_new_token(self, *_: object, **__: object) -> None:
            loops.append(asyncio.get_running_loop())

        async def on_llm_end(self, *_: object, **__: object) -> None:
            loops.append(asyncio.get_running_loop())

    retriever = AsyncOnly()
    own = EpicRAG(engine=rag.engine, retriever=retriever, reranker=AsyncBackwards(), max_tokens=4)
    out = await own.ainvoke("When does Harl return?", {"callbacks": [Seen()]})
    assert [document.metadata["source"] for document in out["context"]] == ["document 2", "sky.pdf"]
    assert set(loops + retriever.loops) == {asyncio.get_running_loop()}
    assert len(loops) > 4


async def test_a_cancelled_call_stops_decoding(rag: EpicRAG, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, count = asyncio.Event(), 0
    loop, real = asyncio.get_running_loop(), ask

    def told(*arguments: object) -> Iterator[object]:
        nonlocal count
        try:
            for event in real(*arguments):  # type: ignore[arg-type]
                count += 1
                yield event
        finally:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr("epic_rag.chain.ask", told)
    own = EpicRAG(engine=rag.engine, max_tokens=3000)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(own.ainvoke(QUESTION), 0.3)
    await asyncio.wait_for(ended.wait(), 30)
    assert count < 2000


def test_fields_can_be_given_for_one_call(rag: EpicRAG) -> None:
    assert len(rag.invoke(QUESTION, k=1)["context"]) == 1
    assert rag.bind(max_tokens=2).invoke(QUESTION)["usage"]["output_tokens"] == 2
    parts = list(rag.stream(QUESTION, max_tokens=3, stop=["never"]))
    assert parts[-1]["usage"]["output_tokens"] == 3
    assert rag.invoke(QUESTION)["usage"]["output_tokens"] == 6
    with pytest.raises(ConfigError, match="no keyword 'engine' for a call: expected one of retriever, reranker, k"):
        rag.invoke(QUESTION, engine=None)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        rag.invoke(QUESTION, k=0)


def test_the_time_for_finding_passages_is_told(rag: EpicRAG) -> None:
    class Slow(Fixed):
        def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
            time.sleep(0.2)
            return Fixed._get_relevant_documents(self, query, run_manager=run_manager)

    timings = EpicRAG(engine=rag.engine, retriever=Slow(), max_tokens=2).invoke(QUESTION)["timings"]
    assert timings["retrieve_seconds"] >= 0.2
    assert timings["ttft_seconds"] >= timings["retrieve_seconds"]


def test_a_filter_beside_another_retriever_is_refused(rag: EpicRAG) -> None:
    with pytest.raises(ConfigError, match="give your retriever its own filter"):
        EpicRAG(engine=rag.engine, retriever=Fixed(), where={"source": "x"})
