from __future__ import annotations

import base64

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
)

from epic_rag import ChatEpic
from epic_rag.errors import ConfigError

QUESTION = "When does the lighthouse open?"


def plain(text: str, title: str | None = None) -> dict[str, str]:
    block = {"type": "text-plain", "text": text, "mime_type": "text/plain"}
    return block if title is None else {**block, "title": title}


@pytest.mark.parametrize(
    "given",
    [
        "The ferry leaves at noon.",
        ["The ferry leaves at noon."],
        Document(page_content="The ferry leaves at noon."),
        {"text": "The ferry leaves at noon."},
        ({"page_content": "The ferry leaves at noon.", "metadata": {"odd": object()}},),
    ],
)
def test_documents_come_in_many_shapes(chat: ChatEpic, given: object) -> None:
    expected = chat.invoke("When?", documents=[Document(page_content="The ferry leaves at noon.")])
    assert chat.invoke("When?", documents=given).text == expected.text


def test_what_stands_beside_a_dicts_text_is_its_metadata(chat: ChatEpic) -> None:
    given = {"text": "Noon.", "title": "Ferry", "metadata": {"source": "f.txt", "score": 2}}
    (source,) = chat.invoke("When?", documents=[given]).response_metadata["sources"]
    assert (source["source"], source["title"], source["score"]) == ("f.txt", "Ferry", 2.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "expected a list of Document, str or dict, got int"),
        (iter(["x"]), "expected a list of Document, str or dict, got list_iterator"),
        ([{"content": "x"}], r"document 1 is a dict without text.*\['content'\]"),
        (["x", None], "document 2: expected a Document, a string or a dict, got NoneType"),
    ],
)
def test_documents_of_another_shape_are_refused_in_words(chat: ChatEpic, given: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        chat.invoke("When?", documents=given)


def test_text_plain_blocks_are_documents(chat: ChatEpic) -> None:
    message = HumanMessage([plain("The lighthouse opens at nine.", "Light"), {"type": "text", "text": QUESTION}])
    (source,) = chat.invoke([message]).response_metadata["sources"]
    assert (source["title"], source["source"]) == ("Light", "Light")
    assert source["text"] == "The lighthouse opens at nine.\n\n"
    encoded = base64.b64encode(b"The lighthouse opens at nine.").decode()
    block = {"type": "text-plain", "base64": encoded, "mime_type": "text/plain"}
    again = chat.invoke([HumanMessage([block, {"type": "text", "text": QUESTION}])])
    assert again.response_metadata["sources"][0]["source"] == "message 1, document 1"
    assert again.text == chat.invoke([message]).text


def test_documents_of_earlier_turns_stay_in_reach_behind_the_latest(chat: ChatEpic) -> None:
    messages = [
        HumanMessage([plain("First.", "one"), {"type": "text", "text": "Read this."}]),
        AIMessage("I did."),
        HumanMessage([plain("Second.", "two"), {"type": "text", "text": "And this."}]),
    ]
    answer = chat.invoke(messages, documents=["Given."])
    assert [s["title"] or s["source"] for s in answer.response_metadata["sources"]] == ["document 1", "two", "one"]
