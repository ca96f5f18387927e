"""`ChatEpic`: the engine's model as a LangChain chat model that reads documents from stored KV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field, SkipValidation

from epic_rag.ask import Context, Delta, ask
from epic_rag.chat.documents import as_documents
from epic_rag.chat.messages import read_messages
from epic_rag.chat.plain import chat
from epic_rag.chat.report import PROVIDER, chunks
from epic_rag.chat.settings import ChatSettings, for_call
from epic_rag.engine import Engine, open_engine
from epic_rag.errors import ConfigError
from epic_rag.retrieve import from_documents
from epic_rag.schema import Answer
from epic_rag.settings import answering


class ChatEpic(ChatSettings, BaseChatModel):
    """A chat model whose documents are prefilled once.

    Documents come under the keyword `documents` of a call (or of `bind`), or as `text-plain` content blocks of the
    user's messages. Their KV is taken from the store; what the store lacks is encoded and stored. Without documents it
    is an ordinary chat. Earlier turns' KV is stored and used again exactly.

    System messages replace the instruction that otherwise stands before documents. Text only: no images, no tools, no
    structured output.

    `response_metadata` tells `sources` (in a stream before the first token), `finish_reason`, `timings`, `dropped` and
    `warnings`; `usage_metadata` tells under `cache_read` how many tokens' KV came from the store.

    Example:
        ```python
        chat = ChatEpic.from_store("disk://my-store", model="HuggingFaceTB/SmolLM2-135M-Instruct")
        chat.invoke("When does the museum open?", documents=["The museum opens at nine."]).text
        ```
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: SkipValidation[Engine] = Field(repr=False, exclude=True)
    """Model and store."""
    streaming: bool = False
    """Whether `invoke` goes through `stream` too, so that callbacks see every token."""

    @classmethod
    def from_store(
        cls,
        store: str | None = None,
        model: str | None = None,
        *,
        dtype: str | None = None,
        device: str | None = None,
        allow_fallback: bool | None = None,
        **fields: Any,
    ) -> Self:
        """Open a store and load a model (see `open_engine`); `fields` are those of the class.

        What is not given is as configured (see `epic_rag/settings`), else the default.
        """
        engine = open_engine(store, model, dtype=dtype, device=device, allow_fallback=allow_fallback)
        return cls(engine=engine, **(answering(cls.model_fields) | fields))

    @property
    def model_name(self) -> str:
        """What the engine's model was called when it was loaded."""
        return self.engine.model.name

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of `text` in this model's tokens."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self.engine.model.tokenizer.encode(text)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # token by token, so that a cancelled call stops decoding
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from chunks(self._events(messages, stop, kwargs))

    def _events(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> Iterator[Context | Delta | Answer]:
        call = {name: value for name, value in call.items() if name != "stream"}  # LangChain's own
        self._check_model(call.pop("model", None))
        given = call.pop("documents", None)
        options = for_call(self, {**call, "stop": stop})
        asked = read_messages(messages)
        if given is None and not asked.documents:
            return chat(self.engine, asked, options)
        documents = [*(() if given is None else as_documents(given)), *asked.documents]
        passages = from_documents(documents, self.engine.model.tokenizer)
        return ask(self.engine, asked.question, options, passages, asked.turns)

    def _check_model(self, named: str | None) -> None:
        if named not in (None, self.model_name):
            raise ConfigError(
                f"model '{named}' was asked for, but this chat runs '{self.model_name}': open another ChatEpic for it"
            )

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything an answer depends on besides messages and documents: also the key of LangChain's answer cache."""
        own = {name: getattr(self, name) for name in ChatSettings.model_fields}
        engine = {"model_fingerprint": self.engine.model.fingerprint, "instruction": self.engine.instruction}
        return {"model_name": self.model_name, **engine, **own}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        chosen = list(self.stop) if stop is None else stop
        return LangSmithParams(**{**super()._get_ls_params(stop=chosen, **kwargs), "ls_provider": PROVIDER})

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            max_input_tokens=self.engine.model.window,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            pdf_inputs=False,
            tool_calling=False,
            structured_output=False,
        )
