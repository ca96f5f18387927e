from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corpus import make_rag
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableLambda

from epic_rag import EpicRAG
from epic_rag.errors import QuestionTooLongError

QUESTION = "What is fact 3 of the telescope worth?"


class Seen(BaseCallbackHandler):
    """What callbacks are told of chains and models, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.messages: list[BaseMessage] = []
        self.metadata: dict[str, Any] = {}
        self.parents: list[object] = []
        self.tokens: list[str] = []
        self.result: LLMResult | None = None

    def on_chain_start(self, serialized: object, inputs: object, **_: object) -> None:
        self.events.append("chain")

    def on_chat_model_start(
        self, serialized: object, messages: list[list[BaseMessage]], *, metadata: dict[str, Any], **told: object
    ) -> None:
        self.events.append("model")
        self.messages, self.metadata = messages[0], metadata
        self.parents.append(told["parent_run_id"])

    def on_llm_new_token(self, token: str, **_: object) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: LLMResult, **_: object) -> None:
        self.events.append("model end")
        self.result = response

    def on_llm_error(self, error: BaseException, **_: object) -> None:
        self.events.append(type(error).__name__)

    def on_chain_end(self, outputs: object, **_: object) -> None:
        self.events.append("chain end")

    def on_chain_error(self, error: BaseException, **_: object) -> None:
        self.events.append(f"chain: {type(error).__name__}")


@pytest.fixture
def rag(tmp_path: Path) -> EpicRAG:
    return make_rag(tmp_path)


def test_the_answer_is_a_chat_models_run_inside_the_chains(rag: EpicRAG) -> None:
    seen = Seen()
    history = [("human", "Is there a telescope?"), ("ai", "Yes.")]
    config = {"callbacks": [seen], "metadata": {"user": "ann"}}
    out = rag.invoke({"question": QUESTION, "chat_history": history}, config)
    assert seen.events == ["chain", "model", "model end", "chain end"]
    assert [message.text for message in seen.messages] == ["Is there a telescope?", "Yes.", QUESTION]
    assert seen.metadata.items() >= {"user": "ann", "ls_provider": "epic-rag", "ls_model_name": "tiny-llama"}.items()
    assert seen.parents != [None]
    assert seen.result is not None
    message = seen.result.generations[0][0].message
    assert message.text == "".join(seen.tokens) == out["answer"].lstrip()
    assert message.usage_metadata == out["usage"]
    assert message.response_metadata["finish_reason"] == "length"


async def test_the_usage_callback_counts_chains_as_other_models(rag: EpicRAG) -> None:
    with get_usage_metadata_callback() as used:
        answers = [rag.invoke(QUESTION), *rag.batch([QUESTION] * 2), await rag.ainvoke(QUESTION)]
        answers.append((RunnableLambda(lambda question: rag.invoke(question))).invoke(QUESTION))
    total = used.usage_metadata["tiny-llama"]
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert total[name] == sum(answer["usage"][name] for answer in answers) > 0


async def test_events_stream_the_models_tokens(rag: EpicRAG) -> None:
    events = [event async for event in rag.astream_events(QUESTION, version="v2")]
    pieces = [event["data"]["chunk"] for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(piece.text for piece in pieces) == rag.invoke(QUESTION)["answer"].lstrip()
    assert len({piece.id for piece in pieces}) == 1
    kinds = [event["event"] for event in events]
    assert kinds.index("on_chat_model_start") < kinds.index("on_chat_model_stream") < kinds.index("on_chat_model_end")
    assert "on_chain_stream" in kinds


def test_a_stream_left_early_and_a_refused_question_end_as_errors(rag: EpicRAG) -> None:
    seen = Seen()
    stream = rag.stream(QUESTION, {"callbacks": [seen]})
    next(stream), next(stream)
    stream.close()
    assert sorted(seen.events) == ["GeneratorExit", "chain", "chain end", "model"]
    seen = Seen()
    with pytest.raises(QuestionTooLongError):
        rag.invoke("telescope " * 5000, {"callbacks": [seen]})
    assert seen.events == ["chain", "chain: QuestionTooLongError"]
