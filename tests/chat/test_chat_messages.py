from __future__ import annotations

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from epic_rag import ChatEpic
from epic_rag.chat.messages import read_messages
from epic_rag.errors import ConfigError
from epic_rag.history import Turn

CALL = {"name": "f", "args": {}, "id": "1"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([HumanMessage([{"type": "image", "url": "http://x/y.png"}])], "message 1 holds images: .* takes text only"),
        ([HumanMessage([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])], "holds images"),
        ([HumanMessage([{"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"}])], "holds audio"),
        ([HumanMessage([{"type": "hologram"}])], "holds blocks of type 'hologram'"),
        ([HumanMessage("a"), AIMessage("", tool_calls=[CALL])], "message 2 .*tool calls"),
        ([ToolMessage("4", tool_call_id="1")], "message 1 has the role 'tool'"),
        ([ChatMessage("x", role="critic")], "role 'critic'"),
        ([HumanMessage("a"), AIMessage("b")], "must end with one of the user's.*the last of 2 is the assistant's"),
        ([SystemMessage("a")], "but there is none of a user"),
        ([HumanMessage(" ")], "the question is empty"),
        ([HumanMessage([{"type": "text-plain", "url": "http://x"}])], "a text-plain block without text"),
        ([HumanMessage([{"type": "text-plain", "base64": "!!"}])], "base64 is not text"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_taken_are_refused_in_words(
    chat: ChatEpic, messages: list[BaseMessage], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        chat.invoke(messages)


def test_a_conversation_is_taken_apart() -> None:
    messages = [
        ChatMessage("Be brief.", role="developer"), HumanMessage("Hi."), HumanMessage(["You", " there."]),
        AIMessage([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Yes?"}]), HumanMessage("Who?"),
    ]  # fmt: skip
    asked = read_messages(messages)
    assert (asked.question, asked.system, asked.documents) == ("Who?", "Be brief.", ())
    assert asked.history == (Turn("user", "Hi.\n\nYou there."), Turn("assistant", "Yes?"))
    assert asked.turns == (Turn("system", "Be brief."), *asked.history)
