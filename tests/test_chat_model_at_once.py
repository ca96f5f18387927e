from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from corpus import make_engine
from langchain_core.documents import Document

from epic_rag import ChatEpic, Engine
from epic_rag.model import LanguageModel

QUESTION = "When does the lighthouse open?"
DOCUMENTS = [
    Document(page_content="The lighthouse opens at nine.", metadata={"source": "light.txt", "title": "Light"}),
    Document(page_content="The ferry leaves at noon.", metadata={"source": "ferry.txt"}),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = make_engine("memory://")
    engine.model.eos_ids = frozenset()
    return engine


@pytest.fixture
def chat(engine: Engine) -> ChatEpic:
    return ChatEpic(engine=engine, max_tokens=8)


def test_threads_give_the_same_answers_as_alone(chat: ChatEpic) -> None:
    asked = [("Hi.", None), (QUESTION, DOCUMENTS), ("When?", DOCUMENTS[1:]), ("Who?", None)] * 2
    alone = [chat.invoke(question, documents=documents).text for question, documents in asked]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: chat.invoke(one[0], documents=one[1]).text, asked))
    assert together == alone


def test_two_event_loops_at_once_give_the_same_answers_as_alone(chat: ChatEpic) -> None:
    questions = ["Hi.", QUESTION, "Who?"]
    alone = [chat.invoke(question, documents=DOCUMENTS).text for question in questions]

    async def all_at_once() -> list[str]:
        answers = await asyncio.gather(*(chat.ainvoke(question, documents=DOCUMENTS) for question in questions))
        streamed = "".join([part.text async for part in chat.astream(questions[0], documents=DOCUMENTS)])
        assert streamed == alone[0]
        return [answer.text for answer in answers]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: asyncio.run(all_at_once()), range(2))) == [alone, alone]


async def test_the_event_loop_keeps_ticking(chat: ChatEpic, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LanguageModel.forward

    def slow(self: LanguageModel, *args: Any, **kwargs: Any) -> object:
        time.sleep(0.02)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(LanguageModel, "forward", slow)
    ticks, answered = 0, asyncio.Event()

    async def tick() -> None:
        nonlocal ticks
        while not answered.is_set():
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await chat.ainvoke(QUESTION, documents=DOCUMENTS)
    pieces = [part async for part in chat.astream(QUESTION, documents=DOCUMENTS)]
    answered.set()
    await ticking
    assert ticks > 10 * len(pieces)


async def test_a_cancelled_call_stops_decoding(chat: ChatEpic, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    real = LanguageModel.forward

    def counted(self: LanguageModel, *args: Any, **kwargs: Any) -> object:
        steps.append(1)
        time.sleep(0.01)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(LanguageModel, "forward", counted)
    call = asyncio.create_task(chat.ainvoke("Hi.", max_tokens=2000))
    while len(steps) < 3:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.1)
    after = len(steps)
    await asyncio.sleep(0.1)
    assert len(steps) == after < 2000
