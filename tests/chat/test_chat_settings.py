from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from epic_rag import ChatEpic, Engine
from epic_rag.errors import ConfigError


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"tools": [{"name": "f"}]}, "'tools' was given, but this model has no tools"),
        ({"response_format": {"type": "json_object"}}, "no structured output"),
        ({"selectr": "none"}, "no keyword 'selectr' for a call: expected one of budget, documents, max_tokens"),
        ({"temperature": "hot"}, "temperature: .* got 'hot'"),
        ({"max_tokens": 0}, "max tokens must be at least 1"),
        ({"model": "gpt-9"}, "this chat runs 'tiny-llama'"),
        ({"selector": "magic"}, "magic"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_keywords_of_a_call_that_cannot_be_are_refused_in_words(
    chat: ChatEpic, call: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        chat.invoke("Hi.", **call)


def test_fields_are_checked_when_the_model_is_made(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="temperature must be 0"):
        ChatEpic(engine=engine, temperature=-1)
    with pytest.raises(ValidationError, match="selectr"):
        ChatEpic(engine=engine, selectr="none")
    with pytest.raises(ValidationError, match="budget"):
        ChatEpic(engine=engine, budget=True)
    usual = ChatEpic(engine=engine, temperature=None, stop="\n", timeout=3, api_key="x", max_retries=2)
    assert (usual.temperature, usual.stop) == (0.0, ("\n",))


def test_parameters_of_a_call_go_before_those_of_the_model(engine: Engine) -> None:
    chat = ChatEpic(engine=engine, max_tokens=12, temperature=1.0, seed=1)
    assert chat.invoke("Hi.").text == chat.invoke("Hi.", seed=1).text != chat.invoke("Hi.", seed=2).text
    assert chat.bind(max_tokens=3).invoke("Hi.").usage_metadata["output_tokens"] == 3
    assert chat.invoke("Hi.", temperature=0).text == ChatEpic(engine=engine, max_tokens=12).invoke("Hi.").text
    text = chat.invoke("Hi.").text
    own = ChatEpic(engine=engine, max_tokens=12, temperature=1.0, seed=1, stop=[text[4]])
    assert own.invoke("Hi.").text == text[: text.index(text[4])]
    assert own.invoke("Hi.", stop=[]).text == text
