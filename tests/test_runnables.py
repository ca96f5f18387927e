"""`EpicRAG` among other runnables, and asked by threads, event loops and processes at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from corpus import make_rag
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableParallel

from epic_rag import ChatEpic, EpicRAG

QUESTION = "What is fact 3 of the telescope worth?"
QUESTIONS = (QUESTION, "What is fact 1 of the bakery worth?", "And of the ferry?")
TALK = {"question": "And of the ferry?", "chat_history": [("human", QUESTION), ("ai", "203 points.")]}


@pytest.fixture
def rag(tmp_path: Path) -> Iterator[EpicRAG]:
    rag = make_rag(tmp_path, 3)
    yield rag
    rag.engine.close()


class Own(BaseRetriever):
    """Fails as often as it is told to."""

    failures: int = 0

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        if self.failures:
            self.failures -= 1
            raise TimeoutError("the search service is busy")
        return [Document(page_content="The comet Harl returns in 2061.")]


def own(rag: EpicRAG, failures: int = 0) -> EpicRAG:
    return EpicRAG(engine=rag.engine, retriever=Own(failures=failures), max_tokens=4)


class Seen(BaseCallbackHandler):
    """Names of the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_chain_start(self, *_: object, **__: object) -> None:
        self.events.append("chain start")

    def on_chain_end(self, *_: object, **__: object) -> None:
        self.events.append("chain end")

    def on_retriever_start(self, *_: object, **__: object) -> None:
        self.events.append("retriever start")

    def on_retriever_end(self, *_: object, **__: object) -> None:
        self.events.append("retriever end")


def test_a_parser_behind_the_answer_streams(rag: EpicRAG) -> None:
    chain = rag.pick("answer") | StrOutputParser()
    pieces = list(chain.stream(QUESTION))
    assert len(pieces) > 1
    assert "".join(pieces) == chain.invoke(QUESTION) == rag.invoke(QUESTION)["answer"]


def test_side_by_side_with_fallbacks_and_retries(rag: EpicRAG) -> None:
    both = RunnableParallel(one=rag.pick("answer"), two=rag).invoke(QUESTION)
    assert both["one"] == both["two"]["answer"]
    again = own(rag, 1).with_retry(retry_if_exception_type=(TimeoutError,), wait_exponential_jitter=False)
    assert again.invoke(QUESTION)["answer"] == own(rag).invoke(QUESTION)["answer"]
    instead = own(rag, 9).with_fallbacks([rag], exceptions_to_handle=(TimeoutError,))
    assert instead.invoke(QUESTION)["answer"] == both["one"]
    assert [out["answer"] for out in instead.batch(list(QUESTIONS[:1]))] == [both["one"]]


async def test_batches_answer_as_one_by_one(rag: EpicRAG) -> None:
    inputs = [*QUESTIONS, TALK]
    expected = [rag.invoke(one)["answer"] for one in inputs]
    assert [out["answer"] for out in rag.batch(inputs, {"max_concurrency": 2})] == expected
    assert [out["answer"] for out in await rag.abatch(inputs, {"max_concurrency": 2})] == expected
    failed, answered = own(rag, 1).batch([QUESTION, QUESTION], {"max_concurrency": 1}, return_exceptions=True)
    assert isinstance(failed, TimeoutError)
    assert answered["answer"]


async def test_events_tell_start_pieces_and_end(rag: EpicRAG) -> None:
    events = [event async for event in own(rag).astream_events(QUESTION, version="v2")]
    names = [event["event"] for event in events]
    assert (names[0], names[-1]) == ("on_chain_start", "on_chain_end")
    assert names.index("on_retriever_start") < names.index("on_retriever_end") < names.index("on_chain_stream")
    chunks = [event["data"]["chunk"] for event in events if event["event"] == "on_chain_stream"]
    assert "context" in chunks[0]
    text = "".join(chunk.get("answer", "") for chunk in chunks)
    assert text == events[-1]["data"]["output"]["answer"] == own(rag).invoke(QUESTION)["answer"]


async def test_callbacks_hear_chain_and_retriever_in_every_form(rag: EpicRAG) -> None:
    heard = ["chain start", "retriever start", "retriever end", "chain end"]
    mine = own(rag)
    for form in ("invoke", "stream", "ainvoke", "astream"):
        seen = Seen()
        config = {"callbacks": [seen]}
        if form == "invoke":
            mine.invoke(QUESTION, config)
        elif form == "stream":
            list(mine.stream(QUESTION, config))
        elif form == "ainvoke":
            await mine.ainvoke(QUESTION, config)
        else:
            async for _ in mine.astream(QUESTION, config):
                pass
        assert seen.events == heard, form


def in_threads(rag: EpicRAG, work: object) -> list[object]:
    """What `work` returns in two threads that begin together."""
    begin, found, failed = threading.Barrier(2), [], []

    def run() -> None:
        begin.wait(30)
        try:
            found.append(work())  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert failed == []
    return found


def test_two_threads_at_once_answer_as_alone(rag: EpicRAG) -> None:
    inputs = [*QUESTIONS, TALK]
    expected = [rag.invoke(one)["answer"] for one in inputs]
    for name in list(rag.engine.store.blobs.names()):  # so that both have to encode
        rag.engine.store.blobs.delete(name)
    assert in_threads(rag, lambda: [rag.invoke(one)["answer"] for one in inputs]) == [expected] * 2


def test_two_event_loops_at_once_answer_as_alone(rag: EpicRAG) -> None:
    inputs = [*QUESTIONS, TALK]
    expected = [rag.invoke(one)["answer"] for one in inputs]

    async def ask_all() -> list[str]:
        return [out["answer"] for out in await asyncio.gather(*(rag.ainvoke(one) for one in inputs))]

    assert in_threads(rag, lambda: asyncio.run(ask_all())) == [expected] * 2


@pytest.mark.parametrize("form", ["astream", "ainvoke"])
async def test_the_event_loop_goes_on_while_a_question_is_answered(
    rag: EpicRAG, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    ticks, answering = 0, threading.Event()
    loop_went_on = threading.Event()
    real = type(rag.engine.model).forward

    def forward(self: object, *args: object, **settings: object) -> object:
        answering.set()
        assert loop_went_on.wait(30), "the loop stands still while the model computes"
        return real(self, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(type(rag.engine.model), "forward", forward)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            if answering.is_set():
                ticks += 1
            if ticks == 5:
                loop_went_on.set()

    ticking = asyncio.create_task(tick())
    answered = rag.astream(TALK) if form == "astream" else [await rag.ainvoke(TALK)]
    parts = [part async for part in answered] if isinstance(answered, AsyncIterator) else answered
    ticking.cancel()
    assert "context" in parts[0]
    assert ticks >= 5


_OTHER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from corpus import make_engine
from epic_rag import ChatEpic, EpicRAG
engine = make_engine(sys.argv[2])
engine.model.eos_ids = frozenset()
rag = EpicRAG(engine=engine, k=2, max_tokens=6)
print("ready", flush=True)
sys.stdin.readline()
answers = [rag.invoke(one)["answer"] for one in json.loads(sys.argv[3])]
chat = ChatEpic(engine=engine, max_tokens=6)
print(json.dumps([*answers, chat.invoke("When?", documents=["The pier opens at nine."]).text]))
engine.close()
"""


def test_two_processes_on_one_store_answer_as_alone(rag: EpicRAG, tmp_path: Path) -> None:
    inputs = [*QUESTIONS, TALK]
    chat = ChatEpic(engine=rag.engine, max_tokens=6)
    expected = [rag.invoke(one)["answer"] for one in inputs]
    expected.append(chat.invoke("When?", documents=["The pier opens at nine."]).text)
    for name in list(rag.engine.store.blobs.names()):
        rag.engine.store.blobs.delete(name)
    given = [sys.executable, "-c", _OTHER, str(Path(__file__).parent), str(tmp_path / "store"), json.dumps(inputs)]
    root = Path(__file__).parent.parent
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    processes = [subprocess.Popen(given, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [json.loads(one) for one in told] == [expected] * 2
