from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessageChunk,
)

from epic_rag import ChatEpic, Engine

QUESTION = "When does the lighthouse open?"
DOCUMENTS = [
    Document(page_content="The lighthouse opens at nine.", metadata={"source": "light.txt", "title": "Light"}),
    Document(page_content="The ferry leaves at noon.", metadata={"source": "ferry.txt"}),
]


def test_an_answer_tells_how_it_was_made(chat: ChatEpic) -> None:
    metadata = chat.invoke(
        QUESTION, documents=DOCUMENTS, selector="none", policy="recency", budget=120
    ).response_metadata
    assert metadata["model_name"] == "tiny-llama"
    assert (metadata["selector"], metadata["policy"]) == ("none", "recency")
    assert set(metadata["timings"]) == {
        "retrieve_seconds", "load_seconds", "link_seconds", "evict_seconds", "decode_seconds", "ttft_seconds",
        "total_seconds",
    }  # fmt: skip
    assert metadata["kv_bytes"]["saved"] > 0
    assert metadata["tokens"]["answer"] == 8


def test_the_end_of_an_answer_has_a_reason(chat: ChatEpic, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chat.invoke("Hi.")
    assert whole.response_metadata["finish_reason"] == "length"
    cut = chat.invoke("Hi.", stop=[whole.text[3:5]])
    assert cut.text == whole.text[:3]
    assert cut.response_metadata["finish_reason"] == "stop"
    at_the_end = chat.invoke("Hi.", stop=[whole.text[-1]], max_tokens=8)
    assert at_the_end.response_metadata["finish_reason"] == "stop"
    monkeypatch.setattr(engine.model, "eos_ids", frozenset(range(engine.model.hf_model.config.vocab_size)))
    ended = chat.invoke("Hi.")
    assert (ended.text, ended.response_metadata["finish_reason"]) == ("", "stop")


def test_a_stream_has_the_sources_first_and_adds_up_to_the_answer(chat: ChatEpic) -> None:
    parts = list(chat.stream(QUESTION, documents=DOCUMENTS))
    assert [source["source"] for source in parts[0].response_metadata["sources"]] == ["light.txt", "ferry.txt"]
    assert parts[0].text == ""
    assert parts[-1].chunk_position == "last"
    whole = sum(parts[1:], start=parts[0])
    assert isinstance(whole, AIMessageChunk)
    expected = chat.invoke(QUESTION, documents=DOCUMENTS)
    assert whole.text == expected.text
    assert whole.usage_metadata["output_tokens"] == expected.usage_metadata["output_tokens"] == 8
    assert set(whole.response_metadata) == set(expected.response_metadata)
