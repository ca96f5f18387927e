"""LangChain's own conformance suites, as they are, on the real class."""

from __future__ import annotations

from typing import Literal

import pytest
from corpus import make_engine
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from epic_rag import ChatEpic, Engine

DOCUMENTS = ["The lighthouse opens at nine.", "The ferry leaves at noon."]


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = make_engine("memory://")
    engine.model.eos_ids = frozenset()  # a random model ends its answer when it likes
    return engine


class OverTinyModel:
    """What both suites are told."""

    @pytest.fixture(autouse=True)
    def _engine(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatEpic

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"engine": self.engine}


class TestUnit(OverTinyModel, ChatModelUnitTests):
    """Construction and parameters."""


class TestIntegration(OverTinyModel, ChatModelIntegrationTests):
    """Answers."""

    @property
    def supports_model_override(self) -> bool:
        return False  # one engine, one model

    @property
    def supported_usage_metadata_details(
        self,
    ) -> dict[
        Literal["invoke", "stream"],
        list[Literal["audio_input", "audio_output", "reasoning_output", "cache_read_input", "cache_creation_input"]],
    ]:
        return {kind: ["cache_read_input", "cache_creation_input"] for kind in ("invoke", "stream")}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        self.invoke_with_cache_creation_input(stream=stream)
        message = self.invoke_with_cache_creation_input(stream=stream)
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message

    def invoke_with_cache_creation_input(self, *, stream: bool = False) -> AIMessage:
        chat = ChatEpic(engine=self.engine, max_tokens=2)
        if stream:
            parts = list(chat.stream("When does it open?", documents=DOCUMENTS))
            return sum(parts[1:], start=parts[0])
        return chat.invoke("When does it open?", documents=DOCUMENTS)
