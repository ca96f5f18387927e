from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corpus import make_engine
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    trim_messages,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableParallel

import epic_rag
from epic_rag import ChatEpic, Engine
from epic_rag.errors import ConfigError, EpicError
from epic_rag.ingest import ingest
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


def test_documents_are_cited_encoded_once_and_then_read_from_the_store(tmp_path: Path) -> None:
    chat = ChatEpic(engine=make_engine(tmp_path / "store"), max_tokens=4)
    first, second = (chat.invoke(QUESTION, documents=DOCUMENTS) for _ in range(2))
    assert first.text == second.text
    assert [s["source"] for s in first.response_metadata["sources"]] == ["light.txt", "ferry.txt"]
    assert [s["tier"] for s in first.response_metadata["sources"]] == ["encoded", "encoded"]
    assert [s["tier"] for s in second.response_metadata["sources"]] == ["disk", "disk"]
    details = [message.usage_metadata["input_token_details"] for message in (first, second)]
    assert details[0]["cache_read"] == 0
    assert details[1] == {"cache_read": details[0]["cache_creation"], "cache_creation": 0}


def test_ingested_documents_are_read_from_the_store_at_once(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = "The lighthouse opens at nine and closes when the last boat has left the harbour.\n\n"
    (tmp_path / "docs" / "a.txt").write_text(text)
    engine = make_engine(tmp_path / "store")
    ingest(engine, [tmp_path / "docs"])
    (passage,) = engine.index.passages()
    answer = ChatEpic(engine=engine, max_tokens=2).invoke(QUESTION, documents=[passage.text])
    assert answer.response_metadata["sources"][0]["tier"] == "disk"


def test_a_search_that_found_nothing_is_told(chat: ChatEpic) -> None:
    metadata = chat.invoke(QUESTION, documents=[]).response_metadata
    assert metadata["warnings"] == ["no passage matched the question; the answer rests on no document"]
    assert "sources" not in metadata
    assert chat.invoke(QUESTION).response_metadata["warnings"] == []


def test_documents_that_do_not_fit_or_repeat_are_reported(chat: ChatEpic) -> None:
    answer = chat.invoke(QUESTION, documents=["Short.", "Short.", "long " * 1000])
    assert [gone["reason"] for gone in answer.response_metadata["dropped"]] == [
        "same text as a better passage",
        "does not fit the context window",
    ]


def seen_by(chat: ChatEpic, monkeypatch: pytest.MonkeyPatch, messages: object, **call: Any) -> str:
    """The prompt, control tokens included, that an answer to `messages` is decoded from."""
    prompts: list[str] = []
    real = LanguageModel.ids

    def ids(self: LanguageModel, token_ids: list[int] | tuple[int, ...]) -> object:
        prompts.append(self.tokenizer._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return real(self, token_ids)

    monkeypatch.setattr(LanguageModel, "ids", ids)
    chat.invoke(messages, **call)
    return max(prompts, key=len)


def test_system_messages_replace_the_instruction_before_documents(
    chat: ChatEpic, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = seen_by(chat, monkeypatch, [SystemMessage("Rhyme."), HumanMessage("Noon?")], documents=["The ferry."])
    assert prompt.startswith("<|im_start|>system\nRhyme.<|im_end|>\n")
    assert "Use only what they say" not in prompt
    assert prompt.index("The ferry.") < prompt.index("Noon?")


def test_earlier_turns_stand_before_the_documents(chat: ChatEpic, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [HumanMessage("Hi."), AIMessage("Hello."), HumanMessage("Noon?")]
    prompt = seen_by(chat, monkeypatch, messages, documents=["The ferry."])
    places = [prompt.index(text) for text in ("Use only what they say", "Hi.", "Hello.", "The ferry.", "Noon?")]
    assert places == sorted(places)


def test_tools_and_structured_output_are_not_implemented(chat: ChatEpic) -> None:
    with pytest.raises(NotImplementedError):
        chat.bind_tools([])
    with pytest.raises(NotImplementedError):
        chat.with_structured_output({"title": "x", "type": "object", "properties": {}})
    assert chat.profile["tool_calling"] is False
    assert chat.invoke("Hi.", tools=[], tool_choice=None).text


def test_tokens_are_counted_with_the_models_own_tokenizer(chat: ChatEpic) -> None:
    assert chat.get_num_tokens("Hello") == 5
    messages = [HumanMessage("a" * 50), AIMessage("b" * 50), HumanMessage("c" * 50)]
    kept = trim_messages(messages, max_tokens=80, token_counter=chat, strategy="last")
    assert [message.text[0] for message in kept] == ["c"]


def test_it_composes_like_any_chat_model(chat: ChatEpic) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("human", "{question}")])
    chain = prompt | chat | StrOutputParser()
    given = {"how": "brief", "question": QUESTION}
    alone = chain.invoke(given)
    assert "".join(chain.stream(given)) == alone
    assert RunnableParallel(one=chain, two=prompt | chat).invoke(given)["two"].text == alone
    with_documents = prompt | chat.bind(documents=DOCUMENTS)
    assert len(with_documents.invoke(given).response_metadata["sources"]) == 2
    assert chain.batch([given] * 3, {"max_concurrency": 2}) == [alone] * 3
    answers = list(chain.batch_as_completed([given] * 2))
    assert {answer for _, answer in answers} == {alone}


def test_fallbacks_and_retries(chat: ChatEpic, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = chat.invoke("Hi.").text
    failing = chat.bind(model="another")
    assert failing.with_fallbacks([chat], exceptions_to_handle=(EpicError,)).invoke("Hi.").text == expected
    tries: list[int] = []
    real = ChatEpic._stream

    def flaky(self: ChatEpic, *args: Any, **kwargs: Any) -> object:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(ChatEpic, "_stream", flaky)
    patient = chat.with_retry(retry_if_exception_type=(OSError,), wait_exponential_jitter=False)
    assert patient.invoke("Hi.").text == expected
    assert len(tries) == 3


def test_fields_are_configurable(chat: ChatEpic) -> None:
    tunable = chat.configurable_fields(max_tokens=ConfigurableField(id="longest"))
    assert tunable.with_config(configurable={"longest": 2}).invoke("Hi.").usage_metadata["output_tokens"] == 2
    assert tunable.invoke("Hi.").usage_metadata["output_tokens"] == 8


class Seen(BaseCallbackHandler):
    """What callbacks are told."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.events: list[str] = []

    def on_chat_model_start(self, serialized: object, messages: object, **_: object) -> None:
        self.events.append("start")

    def on_llm_new_token(self, token: str, **_: object) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: object, **_: object) -> None:
        self.events.append("end")

    def on_llm_error(self, error: BaseException, **_: object) -> None:
        self.events.append(type(error).__name__)


def test_callbacks_see_every_token_and_every_end(chat: ChatEpic) -> None:
    seen = Seen()
    text = "".join(part.text for part in chat.stream("Hi.", {"callbacks": [seen]}))
    assert "".join(seen.tokens) == text
    chat.invoke("Hi.", {"callbacks": [seen]})
    with pytest.raises(ConfigError):
        chat.invoke("", {"callbacks": [seen]})
    assert seen.events == ["start", "end", "start", "end", "start", "ConfigError"]
    streaming, told = ChatEpic(engine=chat.engine, max_tokens=8, streaming=True), Seen()
    assert streaming.invoke("Hi.", {"callbacks": [told]}).text == "".join(told.tokens) == text


async def test_the_usage_callback_adds_up(chat: ChatEpic) -> None:
    with get_usage_metadata_callback() as used:
        answers = [chat.invoke("Hi."), *chat.batch(["Hi.", "You."]), await chat.ainvoke("Hi.")]
    total = used.usage_metadata["tiny-llama"]
    assert total["output_tokens"] == sum(answer.usage_metadata["output_tokens"] for answer in answers) == 32
    assert total["input_tokens"] == sum(answer.usage_metadata["input_tokens"] for answer in answers)


async def test_events_of_a_chain_hold_every_piece(chat: ChatEpic) -> None:
    chain = chat | StrOutputParser()
    events = [event async for event in chain.astream_events("Hi.", version="v2")]
    pieces = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(pieces) == chat.invoke("Hi.").text
    (end,) = [event for event in events if event["event"] == "on_chat_model_end"]
    assert end["data"]["output"].usage_metadata["output_tokens"] == 8


def test_answers_of_other_parameters_do_not_share_a_place_in_the_answer_cache(engine: Engine) -> None:
    cache = InMemoryCache()
    short, longer = (ChatEpic(engine=engine, max_tokens=n, cache=cache) for n in (2, 5))
    assert short.invoke("Hi.").usage_metadata["output_tokens"] == 2
    assert longer.invoke("Hi.").usage_metadata["output_tokens"] == 5
    assert short.invoke("Hi.", documents=["x"]).response_metadata["sources"]
    assert short.invoke("Hi.").id == short.invoke("Hi.").id, "a hit"


def test_engines_of_other_instructions_do_not_share_a_place_in_the_answer_cache(engine: Engine) -> None:
    other = Engine(engine.model, engine.store, engine.index, instruction="Answer in verse.")
    cache = InMemoryCache()
    plain, verse = (ChatEpic(engine=one, max_tokens=2, cache=cache) for one in (engine, other))
    first = plain.invoke("Hi.", documents=["x"])
    assert plain.invoke("Hi.", documents=["x"]).id == first.id
    assert verse.invoke("Hi.", documents=["x"]).id != first.id


def test_it_opens_a_store_and_a_model_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    chat = ChatEpic.from_store(str(tmp_path / "store"), str(tiny_folder), max_tokens=2)
    assert chat.invoke("Hi.", documents=["One."]).response_metadata["model_name"] == str(tiny_folder)
    assert chat.profile["max_input_tokens"] == 4096
    assert isinstance(chat, BaseChatModel)
    chat.engine.close()


def test_the_package_exports_it() -> None:
    assert "ChatEpic" in epic_rag.__all__
    assert epic_rag.ChatEpic is ChatEpic


@pytest.mark.model
def test_a_real_model_reads_documents_and_talks(smollm: LanguageModel) -> None:
    chat = ChatEpic(engine=make_engine("memory://", smollm), max_tokens=32)
    found = chat.invoke(
        QUESTION, documents=["The lighthouse opens at nine in the morning.", "The ferry leaves at noon."]
    )
    assert "nine" in found.text.lower()
    assert found.response_metadata["finish_reason"] == "stop"
    turns = [HumanMessage("What is the capital of France?"), AIMessage("The capital of France is Paris.")]
    assert "Rome" in chat.invoke([*turns, HumanMessage("And of Italy?")]).text
