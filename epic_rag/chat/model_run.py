"""The answer inside a chain, told to LangChain's callbacks as the run of a chat model.

So traces show it, `get_usage_metadata_callback` counts it, and `astream_events` and graphs stream its tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    CallbackManager,
    CallbackManagerForLLMRun,
)
from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_messages
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.runnables import RunnableConfig, run_in_executor

from epic_rag.ask import Context, Delta
from epic_rag.chat.report import PROVIDER, as_chunk
from epic_rag.history import Turn
from epic_rag.schema import Answer

Event = Context | Delta | Answer
_NAME = "ChatEpic"


@dataclass(slots=True)
class ModelRun:
    """One answer as a run. It begins with the context, when passages have been found: its seconds are the model's.

    Attributes:
        question: what is answered.
        turns: the conversation before it.
        invocation: `model_name`, and what else a trace should tell of the call.
        before: tokens that were spent on the question before, and are counted here; None: none.
    """

    question: str
    turns: Sequence[Turn]
    invocation: Mapping[str, str | float | None]
    before: UsageMetadata | None = None
    _told: list[ChatGenerationChunk] = field(default_factory=list)

    def of(self, events: Iterator[Event], config: RunnableConfig) -> Iterator[Event]:
        """Pass the events of `ask` on, and tell them to the callbacks of `config`."""
        run: CallbackManagerForLLMRun | None = None
        try:
            for event in events:
                if run is None:
                    manager = CallbackManager.configure(config.get("callbacks"), **self._inherited(config))
                    (run,) = manager.on_chat_model_start({}, [self._messages()], **self._about())
                if (chunk := self._chunk(event, run.run_id)) is not None:
                    run.on_llm_new_token(chunk.text, chunk=chunk)
                yield event
        except BaseException as error:
            if run is not None:
                run.on_llm_error(error, response=self._result())
            raise
        if run is not None:
            run.on_llm_end(self._result())

    async def aof(self, events: Iterator[Event], config: RunnableConfig) -> AsyncIterator[Event]:
        """The same on an event loop; the events come from a thread, one at a time, so that a cancelled run stops."""
        run: AsyncCallbackManagerForLLMRun | None = None
        try:
            while (event := await run_in_executor(config, next, events, None)) is not None:
                if run is None:
                    manager = AsyncCallbackManager.configure(config.get("callbacks"), **self._inherited(config))
                    (run,) = await manager.on_chat_model_start({}, [self._messages()], **self._about())
                if (chunk := self._chunk(event, run.run_id)) is not None:
                    await run.on_llm_new_token(chunk.text, chunk=chunk)
                yield event
        except BaseException as error:
            if run is not None:
                await run.on_llm_error(error, response=self._result())
            raise
        if run is not None:
            await run.on_llm_end(self._result())

    def _inherited(self, config: RunnableConfig) -> dict[str, Any]:
        told = {"ls_provider": PROVIDER, "ls_model_name": self.invocation["model_name"], "ls_model_type": "chat"}
        metadata = {**(config.get("metadata") or {}), **told}
        return {"inheritable_tags": config.get("tags"), "inheritable_metadata": metadata}

    def _about(self) -> dict[str, Any]:
        return {"name": _NAME, "invocation_params": dict(self.invocation), "options": {}, "batch_size": 1}

    def _messages(self) -> list[BaseMessage]:
        return convert_to_messages([*((turn.role, turn.text) for turn in self.turns), ("user", self.question)])

    def _chunk(self, event: Event, run_id: UUID) -> ChatGenerationChunk | None:
        chunk = as_chunk(event)
        if chunk is not None:
            if isinstance(event, Answer) and isinstance(chunk.message, AIMessageChunk):
                chunk.message.usage_metadata = add_usage(chunk.message.usage_metadata, self.before)
            chunk.message.id = f"lc_run--{run_id}"
            self._told.append(chunk)
        return chunk

    def _result(self) -> LLMResult:
        merged = merge_chat_generation_chunks(self._told)
        return LLMResult(generations=[] if merged is None else [[merged]])
