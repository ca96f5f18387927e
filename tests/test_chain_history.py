"""Conversations through the chain: what it takes, and its two ways with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import make_rag
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from pydantic import Field, ValidationError

from epic_rag import EpicRAG
from epic_rag.chain_input import read_input
from epic_rag.condense import Condensed, condense
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget
from epic_rag.history import Turn

QUESTION = "What is fact 3 of the telescope worth?"
ASKED = [HumanMessage("What is fact 1 of the bakery worth?"), AIMessage("101 points.")]


@pytest.fixture
def rag(tmp_path: Path) -> EpicRAG:
    return make_rag(tmp_path, 3)


class Asked(BaseRetriever):
    """Remembers what it was asked."""

    seen: list[str] = Field(default_factory=list)

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        self.seen.append(query)
        return [Document(page_content="The ferry is worth 301 points.")]


def test_a_history_comes_as_messages_pairs_dicts_or_turns() -> None:
    expected = (Turn("system", "Be brief."), Turn("user", "Hi."), Turn("assistant", "Hello."))
    for history in (
        [SystemMessage("Be brief."), HumanMessage("Hi."), AIMessage([{"type": "text", "text": "Hello."}])],
        [("system", "Be brief."), ("human", "Hi."), ("ai", "Hello.")],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}, expected[2]],
        [*expected[:2], ToolMessage("42", tool_call_id="1"), expected[2]],
    ):
        assert read_input({"question": QUESTION, "chat_history": history}) == (QUESTION, expected)  # type: ignore[typeddict-item]


@pytest.mark.parametrize("history", ["Hi.", 5, [5], [("stranger", "Hi.")], [{"content": "Hi."}]])
def test_a_history_of_another_shape_is_refused_in_words(history: object) -> None:
    with pytest.raises(ConfigError, match="chat_history"):
        read_input({"question": QUESTION, "chat_history": history})  # type: ignore[typeddict-item]


def test_earlier_turns_are_read_from_the_store_exactly(rag: EpicRAG) -> None:
    asked = {"question": QUESTION, "chat_history": ASKED}
    first, second = rag.invoke(asked), rag.invoke(asked)
    assert first["question"] == QUESTION
    assert "standalone_question" not in first
    plain = rag.invoke(QUESTION)
    assert first["usage"]["input_tokens"] > plain["usage"]["input_tokens"]
    used = [out["usage"]["input_token_details"] for out in (first, second)]
    assert used[1]["cache_read"] > used[0]["cache_read"]
    assert used[1]["cache_creation"] < used[0]["cache_creation"]
    assert first["answer"] == second["answer"]


def test_a_short_question_is_looked_up_with_the_one_before(rag: EpicRAG) -> None:
    asked = Asked()
    own = EpicRAG(engine=rag.engine, retriever=asked, max_tokens=2)
    own.invoke({"question": "And the ferry?", "chat_history": ASKED})
    own.invoke({"question": QUESTION, "chat_history": ASKED})
    assert asked.seen == [f"{ASKED[0].content} And the ferry?", QUESTION]


def test_condense_looks_up_and_answers_a_question_that_stands_alone(
    rag: EpicRAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epic_rag.chain.condense", lambda *_: Condensed(QUESTION, 40, 9))
    own = EpicRAG(engine=rag.engine, k=2, max_tokens=6, history_mode="condense")
    out, plain = own.invoke({"question": "And it?", "chat_history": ASKED}), rag.invoke(QUESTION)
    assert (out["question"], out["standalone_question"]) == ("And it?", QUESTION)
    assert out["answer"] == plain["answer"]
    assert out["context"] == plain["context"]
    for name, more in (("input_tokens", 40), ("output_tokens", 9), ("total_tokens", 49)):
        assert out["usage"][name] == plain["usage"][name] + more
    with get_usage_metadata_callback() as used:
        own.invoke({"question": "And it?", "chat_history": ASKED})
    assert used.usage_metadata["tiny-llama"] == out["usage"]
    assert "standalone_question" not in own.invoke(QUESTION)


def test_condensing_is_greedy_short_and_stores_nothing(rag: EpicRAG) -> None:
    before = sorted(rag.engine.store.blobs.names())
    turns = [Turn("user", "Where is the ferry?" * 20), Turn("assistant", "In the harbour.")] * 20
    one = condense(rag.engine, "And the bakery?", turns)
    assert one == condense(rag.engine, "And the bakery?", turns)
    assert one.text
    assert "\n" not in one.text
    assert one.prompt_tokens > 0 < one.answer_tokens <= 64
    assert sorted(rag.engine.store.blobs.names()) == before
    assert condense(rag.engine, "And the bakery?", ()) == Condensed("And the bakery?")


def test_schemas_say_what_goes_in_and_what_comes_out(rag: EpicRAG) -> None:
    schema = rag.get_input_jsonschema()
    assert [one.get("type", "dict") for one in schema["anyOf"]] == ["string", "dict"]
    question = schema["$defs"]["Question"]
    assert set(question["properties"]) == {"question", "chat_history"}
    assert question["required"] == ["question"]
    assert rag.get_input_schema().model_validate({"question": "x", "chat_history": [("human", "y")]})
    with pytest.raises(ValidationError):
        rag.get_input_schema().model_validate({"chat_history": []})
    out = rag.get_output_jsonschema()["$defs"]["RAGAnswer"]["properties"]
    assert {"question", "context", "answer", "usage", "timings", "warnings", "dropped"} <= set(out)


def test_k_selector_budget_and_policy_can_be_set_for_one_call(rag: EpicRAG) -> None:
    names = ("k", "selector", "budget", "policy")
    free = rag.configurable_fields(**{name: ConfigurableField(id=name) for name in names})
    set_ = {"k": 1, "selector": "full", "budget": "80%", "policy": "recency"}
    got = free.with_config(configurable=set_).invoke(QUESTION)
    plain = EpicRAG(engine=rag.engine, max_tokens=6, **set_).invoke(QUESTION)  # type: ignore[arg-type]
    assert len(got["context"]) == 1
    assert got["usage"]["input_token_details"]["cache_read"] == 0
    assert got["answer"] == plain["answer"]
    assert free.invoke(QUESTION)["answer"] == rag.invoke(QUESTION)["answer"]
    with pytest.raises(ConfigError, match="unknown selector 'best'"):
        free.with_config(configurable={"selector": "best"}).invoke(QUESTION)


@pytest.mark.parametrize(
    ("field", "error", "words"),
    [
        ({"k": 0}, ConfigError, "k, the number of passages"),
        ({"selector": "best"}, ConfigError, "unknown selector"),
        ({"history_mode": "long"}, ValidationError, "'direct' or 'condense'"),
        ({"budget": True}, ValidationError, "budget"),
        ({"kay": 3}, ValidationError, "Extra inputs are not permitted"),
    ],
)
def test_fields_that_cannot_be_are_refused_at_once(
    rag: EpicRAG, field: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        EpicRAG(engine=rag.engine, **field)  # type: ignore[arg-type]


def test_a_budget_may_be_written_in_every_way(rag: EpicRAG) -> None:
    answers = [EpicRAG(engine=rag.engine, budget=budget).invoke(QUESTION) for budget in ("50%", KVBudget(ratio=0.5))]
    assert answers[0]["answer"] == answers[1]["answer"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (HumanMessage([{"type": "image", "url": "https://x/y.png"}]), "type 'image'"),
        (HumanMessage([{"type": "text-plain", "text": "a file", "mime_type": "text/plain"}]), "type 'text-plain'"),
        (ChatMessage("No good.", role="critic"), "the role 'critic' is unknown; expected user, assistant or system"),
    ],
)
def test_what_cannot_be_read_is_not_left_out_in_silence(message: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"chat_history, message 2.*{said}"):
        read_input({"question": "And it?", "chat_history": [("human", "Look."), message]})


def test_messages_of_tools_are_passed_over() -> None:
    call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])
    history = [("human", "Look."), call, ToolMessage("seen", tool_call_id="1"), ("ai", "I did.")]
    _, turns = read_input({"question": "And?", "chat_history": history})
    assert [turn.text for turn in turns if turn.text] == ["Look.", "I did."]
