"""The answer inside a chain, told to LangChain's callbacks as the run of a chat model.

So traces show it, `get_usage_metadata_callback` counts it, and `astream_events` and graphs stream its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from langchain_core.callbacks import CallbackManager, CallbackManagerForLLMRun
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.runnables import RunnableConfig

from epic_rag.ask import Context, Delta
from epic_rag.chat.report import PROVIDER, Reporter
from epic_rag.history import Turn
from epic_rag.schema import Answer

Event = Context | Delta | Answer
_NAME = "ChatEpic"


def as_model_run(
    events: Iterator[Event],
    question: str,
    turns: Sequence[Turn],
    invocation: Mapping[str, str | float | None],
    config: RunnableConfig,
) -> Iterator[Event]:
    """Pass the events of an answer on, and tell them to the callbacks of `config`.

    The run begins with the context, when passages have been found, so its seconds are the model's.

    Args:
        events: of `ask`.
        question: what is answered.
        turns: the conversation before it.
        invocation: `model_name`, and what else a trace should tell of the call.
        config: of the chain's run, with its children's callbacks.
    """
    run: CallbackManagerForLLMRun | None = None
    reporter, told = Reporter(), list[ChatGenerationChunk]()
    try:
        for event in events:
            run = run or _begin(question, turns, invocation, config)
            if (chunk := reporter.chunk(event)) is not None:
                chunk.message.id = f"lc_run--{run.run_id}"
                run.on_llm_new_token(chunk.text, chunk=chunk)
                told.append(chunk)
            yield event
    except BaseException as error:
        if run is not None:
            run.on_llm_error(error, response=_result(told))
        raise
    if run is not None:
        run.on_llm_end(_result(told))


def _begin(
    question: str, turns: Sequence[Turn], invocation: Mapping[str, str | float | None], config: RunnableConfig
) -> CallbackManagerForLLMRun:
    said = [(turn.role, turn.text) for turn in turns]
    messages: list[BaseMessage] = convert_to_messages([*said, ("user", question)])
    told = {"ls_provider": PROVIDER, "ls_model_name": invocation["model_name"], "ls_model_type": "chat"}
    manager = CallbackManager.configure(
        config.get("callbacks"),
        inheritable_tags=config.get("tags"),
        inheritable_metadata={**(config.get("metadata") or {}), **told},
    )
    (run,) = manager.on_chat_model_start(
        {}, [messages], name=_NAME, invocation_params=dict(invocation), options={}, batch_size=1
    )
    return run


def _result(told: list[ChatGenerationChunk]) -> LLMResult:
    merged = merge_chat_generation_chunks(told)
    return LLMResult(generations=[] if merged is None else [[merged]])
