"""What a chat reports with its answer, in LangChain's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGenerationChunk

from epic_rag.ask import Context, Delta
from epic_rag.schema import Answer, TokenCounts

PROVIDER = "epic-rag"


def chunks(events: Iterable[Context | Delta | Answer]) -> Iterator[ChatGenerationChunk]:
    """The events of an answer as chunks of one message, which add up to it.

    Yields:
        The sources first, if there are any; then pieces of the answer; last, without text, everything else.
    """
    for event in events:
        if (chunk := as_chunk(event)) is not None:
            yield chunk


def as_chunk(event: Context | Delta | Answer) -> ChatGenerationChunk | None:
    """The event as a chunk; None where there is nothing to tell."""
    if isinstance(event, Delta):
        return _chunk(event.text)
    if isinstance(event, Answer):
        return _last_chunk(event)
    return _chunk("", {"sources": [asdict(source) for source in event.sources]}) if event.sources else None


def _chunk(text: str, metadata: dict[str, object] | None = None) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text, response_metadata=metadata or {}))


def _last_chunk(answer: Answer) -> ChatGenerationChunk:
    metadata = {
        "model_provider": PROVIDER,
        "model_name": answer.model,
        "finish_reason": answer.finish_reason,
        "selector": answer.selector,
        "policy": answer.policy,
        "timings": asdict(answer.timings),
        "tokens": asdict(answer.tokens),
        "kv_bytes": asdict(answer.kv_bytes),
        "dropped": [asdict(gone) for gone in answer.dropped],
        "warnings": list(answer.warnings),
    }
    message = AIMessageChunk(
        content="", response_metadata=metadata, usage_metadata=usage(answer.tokens), chunk_position="last"
    )
    return ChatGenerationChunk(message=message)


def usage(tokens: TokenCounts) -> UsageMetadata:
    """Counts: `cache_read` is KV linked from the store, `cache_creation` what this answer had encoded and stored."""
    return UsageMetadata(
        input_tokens=tokens.context,
        output_tokens=tokens.answer,
        total_tokens=tokens.context + tokens.answer,
        input_token_details=InputTokenDetails(cache_read=tokens.loaded, cache_creation=tokens.encoded),
    )
