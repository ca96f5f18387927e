"""`EpicRAG`: a question in, an answer with its context out, as one LangChain runnable."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from functools import reduce
from typing import Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages.ai import UsageMetadata
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import patch_config, run_in_executor
from langchain_core.runnables.utils import AddableDict
from pydantic import ConfigDict, SkipValidation, StrictInt, model_validator
from typing_extensions import TypedDict

from epic_rag.ask import AskOptions, Context, Delta, ask
from epic_rag.chain_input import Question, read_input
from epic_rag.chat.model_run import as_model_run
from epic_rag.chat.report import usage
from epic_rag.condense import condense
from epic_rag.config import DEFAULT_K, DEFAULT_MAX_TOKENS, DEFAULT_SELECTOR
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine, open_engine
from epic_rag.evict import KVBudget
from epic_rag.history import search_text
from epic_rag.rerank import CANDIDATES_PER_PASSAGE, rerank
from epic_rag.retrieve import Retrieved, from_documents, retrieve
from epic_rag.schema import Answer, Source
from epic_rag.settings import answering


class RAGAnswer(TypedDict, total=False):
    """Output; in a stream its parts arrive one after the other and add up.

    `standalone_question` is there where a conversation was condensed.
    """

    question: str
    standalone_question: str
    context: list[Document]
    answer: str
    timings: dict[str, float]
    usage: UsageMetadata
    warnings: list[str]
    dropped: list[dict[str, str | int]]


class EpicRAG(RunnableSerializable[str | Question, RAGAnswer]):
    """Retrieve, load, link, evict and decode behind LangChain's `invoke`, `stream`, `batch` and their async forms.

    A stream yields the context before the first token, then pieces of the answer, then timings and usage. Earlier turns
    come as `chat_history`; their KV is stored and used again exactly. Callbacks hear of the answer as of a chat model's
    run inside the chain: token counts, pieces as they are decoded, errors.

    Example:
        ```python
        rag = EpicRAG.from_store("disk://my-store", model="HuggingFaceTB/SmolLM2-135M-Instruct")
        rag.invoke("When does the museum open?")["answer"]
        ```
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: SkipValidation[Engine]
    """Model, store and index."""
    retriever: BaseRetriever | None = None
    """Any LangChain retriever; None: the store's own index. Passages not stored yet are encoded and stored."""
    reranker: BaseDocumentCompressor | None = None
    """Any LangChain reranker: takes the `k` best of the retriever's passages, or of 4 k from the store's own index."""
    k: int = DEFAULT_K
    """Passages to retrieve from the store's own index, or to keep of those that were ranked anew."""
    where: dict[str, str] | None = None
    """Only passages of the store's own index whose fields match, such as `{"source": "*/guides/*"}`; None: all."""
    selector: str = DEFAULT_SELECTOR
    """Which context tokens are computed again: `none`, `lego:K` or `full`."""
    policy: str | None = None
    """Which tokens stay under the budget; None: `roco`."""
    budget: StrictInt | str | KVBudget | None = None
    """What may stay in the KV cache: tokens (1024), a share of the prompt ("25%") or bytes ("64MB"); None: all."""
    history_mode: Literal["direct", "condense"] = "direct"
    """What a conversation does. `direct`: earlier turns stand in the prompt, and the question is looked up (a very
    short one with the one before it). `condense`: the model writes the question anew so that it stands alone; that one
    is looked up and answered, without the earlier turns."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse now what could not be answered with later."""
        self._options()
        return self

    @classmethod
    def from_store(
        cls,
        store: str | None = None,
        model: str | None = None,
        *,
        dtype: str | None = None,
        device: str | None = None,
        allow_fallback: bool | None = None,
        embeddings: Embeddings | str | None = None,
        **fields: Any,
    ) -> Self:
        """Open a store and load a model (see `open_engine`); `fields` are those of the class.

        A `retriever` that is a name, `bm25`, `dense` or `hybrid`, is the engine's, and `embeddings` are for it.

        What is not given is as configured (see `epic_rag/settings`), else the default.
        """
        named = fields.pop("retriever") if isinstance(fields.get("retriever"), str) else None
        engine = open_engine(
            store,
            model,
            dtype=dtype,
            device=device,
            allow_fallback=allow_fallback,
            retriever=named,
            embeddings=embeddings,
        )
        return cls(engine=engine, **(answering(cls.model_fields) | fields))

    def invoke(self, input: str | Question, config: RunnableConfig | None = None, **kwargs: Any) -> RAGAnswer:
        """Answer one question."""
        return self._call_with_config(self._answer, input, config, **kwargs)

    async def ainvoke(self, input: str | Question, config: RunnableConfig | None = None, **kwargs: Any) -> RAGAnswer:
        """Answer one question without blocking the event loop."""
        return await run_in_executor(config, self.invoke, input, config, **kwargs)

    def stream(self, input: str | Question, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[RAGAnswer]:
        """Answer one question piece by piece."""
        yield from self.transform(iter([input]), config, **kwargs)

    def transform(
        self, input: Iterator[str | Question], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[RAGAnswer]:
        """Answer the question that `input` adds up to, piece by piece."""
        yield from self._transform_stream_with_config(input, self._transform, config, **kwargs)

    async def astream(
        self, input: str | Question, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[RAGAnswer]:
        """Answer one question piece by piece without blocking the event loop."""

        async def once() -> AsyncIterator[str | Question]:
            yield input

        async for part in self.atransform(once(), config, **kwargs):
            yield part

    async def atransform(
        self, input: AsyncIterator[str | Question], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[RAGAnswer]:
        """Answer the question that `input` adds up to, piece by piece, without blocking the event loop."""
        async for part in self._atransform_stream_with_config(input, self._atransform, config, **kwargs):
            yield part

    def _answer(
        self, input: str | Question, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> RAGAnswer:
        parts = self._parts(input, patch_config(config, callbacks=run_manager.get_child()))
        return reduce(operator.add, parts)

    def _transform(
        self, input: Iterator[str | Question], run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Iterator[RAGAnswer]:
        yield from self._parts(_joined(list(input)), patch_config(config, callbacks=run_manager.get_child()))

    async def _atransform(
        self, input: AsyncIterator[str | Question], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> AsyncIterator[RAGAnswer]:
        question = _joined([part async for part in input])
        child = patch_config(config, callbacks=run_manager.get_sync().get_child())
        parts = self._parts(question, child)
        while (part := await run_in_executor(config, next, parts, None)) is not None:
            yield part

    def _parts(self, input: str | Question, config: RunnableConfig) -> Iterator[RAGAnswer]:
        question, turns = read_input(input)
        asked, extra = question, {}
        if self.history_mode == "condense" and turns:
            asked = condense(self.engine, question, turns)
            turns, extra = tuple(turn for turn in turns if turn.role == "system"), {"standalone_question": asked}
        passages = self._passages(search_text(asked, turns), config)
        events = ask(self.engine, asked, self._options(), passages, turns)
        for event in as_model_run(events, asked, turns, self._invocation(), config):
            if isinstance(event, Context):
                documents = [_document(source) for source in event.sources]
                yield AddableDict(question=question, **extra, context=documents, answer="")  # type: ignore[misc]
            elif isinstance(event, Delta):
                yield AddableDict(answer=event.text)  # type: ignore[misc]
            else:
                yield _last_part(event)

    def _passages(self, question: str, config: RunnableConfig) -> list[Retrieved] | None:
        """The passages to answer from; None: those that `ask` retrieves itself."""
        found = None
        if self.retriever is not None:
            found = from_documents(self.retriever.invoke(question, config), self.engine.model.tokenizer)
        if self.reranker is None:
            return found
        if found is None:
            found = retrieve(self.engine, question, CANDIDATES_PER_PASSAGE * self.k, self.where)
        return rerank(self.engine, question, found, self.reranker, self.k, config.get("callbacks"))

    def _invocation(self) -> dict[str, str | float | None]:
        """What traces tell of the model's run."""
        return {
            "model_name": self.engine.model.name,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "selector": self.selector,
        }

    def _options(self) -> AskOptions:
        how = DecodeOptions(self.max_tokens, self.temperature, self.top_p, self.seed, self.stop)
        return AskOptions(self.k, self.selector, self.policy, self.budget, how, self.where)


def _joined(parts: list[str | Question]) -> str | Question:
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else parts[-1]


def _document(source: Source) -> Document:
    metadata = {name: getattr(source, name) for name in ("source", "position", "title", "line", "score", "key", "tier")}
    return Document(page_content=source.text, metadata=metadata)


def _last_part(answer: Answer) -> RAGAnswer:
    return AddableDict(  # type: ignore[return-value]
        timings=asdict(answer.timings),
        usage=usage(answer.tokens),
        warnings=list(answer.warnings),
        dropped=[asdict(gone) for gone in answer.dropped],
    )
