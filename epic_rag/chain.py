"""`EpicRAG`: a question in, an answer with its context out, as one LangChain runnable."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterator
from functools import reduce
from typing import Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import patch_config, run_in_executor
from pydantic import ConfigDict, SkipValidation, StrictInt, model_validator

from epic_rag.ask import AskOptions, Context, Delta, ask
from epic_rag.chain_input import Question, add_up, read_input
from epic_rag.chain_output import Asked, RAGAnswer
from epic_rag.chat.model_run import ModelRun
from epic_rag.condense import condense
from epic_rag.config import DEFAULT_K, DEFAULT_MAX_TOKENS, DEFAULT_SELECTOR
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine, open_engine
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget
from epic_rag.metrics import StageClock
from epic_rag.rerank import CANDIDATES_PER_PASSAGE, arerank, rerank
from epic_rag.retrieve import Retrieved, from_documents, retrieve
from epic_rag.schema import Answer
from epic_rag.settings import answering


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
        if self.where is not None and self.retriever is not None:
            raise ConfigError("where is for the store's own index: give your retriever its own filter instead")
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
        """Answer one question; `kwargs` are fields for this call, such as `k=2`, as `bind` gives them."""
        return self._call_with_config(self._answer, input, config, **kwargs)

    async def ainvoke(self, input: str | Question, config: RunnableConfig | None = None, **kwargs: Any) -> RAGAnswer:
        """Answer one question without blocking the event loop; a cancelled call stops decoding."""
        return await self._acall_with_config(self._aanswer, input, config, **kwargs)

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
        self, input: str | Question, run_manager: CallbackManagerForChainRun, config: RunnableConfig, **call: Any
    ) -> RAGAnswer:
        parts = self._with(call)._parts(input, patch_config(config, callbacks=run_manager.get_child()))
        return reduce(operator.add, parts)

    async def _aanswer(
        self, input: str | Question, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig, **call: Any
    ) -> RAGAnswer:
        parts = self._with(call)._aparts(input, patch_config(config, callbacks=run_manager.get_child()))
        return reduce(operator.add, [part async for part in parts])

    def _transform(
        self,
        input: Iterator[str | Question],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **call: Any,
    ) -> Iterator[RAGAnswer]:
        yield from self._with(call)._parts(add_up(input), patch_config(config, callbacks=run_manager.get_child()))

    async def _atransform(
        self,
        input: AsyncIterator[str | Question],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **call: Any,
    ) -> AsyncIterator[RAGAnswer]:
        question = add_up([part async for part in input])
        async for part in self._with(call)._aparts(question, patch_config(config, callbacks=run_manager.get_child())):
            yield part

    def _parts(self, input: object, config: RunnableConfig) -> Iterator[RAGAnswer]:
        clock = StageClock()
        with clock.stage("retrieve"):
            asked = self._asked(input)
            passages = self._passages(asked.search_text, config)
        for event in self._run(asked).of(self._ask(asked, passages, clock), config):
            yield asked.part(event)

    async def _aparts(self, input: object, config: RunnableConfig) -> AsyncIterator[RAGAnswer]:
        clock = StageClock()
        with clock.stage("retrieve"):
            asked = await run_in_executor(config, self._asked, input)
            passages = await self._apassages(asked.search_text, config)
        async for event in self._run(asked).aof(self._ask(asked, passages, clock), config):
            yield asked.part(event)

    def _with(self, call: dict[str, Any]) -> Self:
        """This chain with some fields set for one call."""
        settable = [name for name in type(self).model_fields if name not in ("engine", "name")]
        if unknown := call.keys() - set(settable):
            raise ConfigError(f"no keyword '{min(unknown)}' for a call: expected one of {', '.join(settable)}")
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | call) if call else self

    def _asked(self, input: object) -> Asked:
        """What is to be answered: the question of the input, or the one that the model makes of it."""
        question, turns = read_input(input)
        if self.history_mode == "direct" or not turns:
            return Asked(question, turns)
        system = tuple(turn for turn in turns if turn.role == "system")
        return Asked(question, system, condense(self.engine, question, turns))

    def _ask(
        self, asked: Asked, passages: list[Retrieved] | None, clock: StageClock
    ) -> Iterator[Context | Delta | Answer]:
        return ask(self.engine, asked.text, self._options(), passages, asked.turns, clock)

    def _passages(self, question: str, config: RunnableConfig) -> list[Retrieved] | None:
        """The passages to answer from; None: those that `ask` retrieves itself."""
        if self.retriever is None:
            found = self._candidates(question)
        else:
            found = from_documents(self.retriever.invoke(question, config), self.engine.model.tokenizer)
        if self.reranker is None or found is None:
            return found
        return rerank(self.engine, question, found, self.reranker, self.k, config.get("callbacks"))

    async def _apassages(self, question: str, config: RunnableConfig) -> list[Retrieved] | None:
        """The same; a retriever and a reranker are asked in their own async way."""
        if self.retriever is None:
            found = await run_in_executor(config, self._candidates, question)
        else:
            documents = await self.retriever.ainvoke(question, config)
            found = await run_in_executor(config, from_documents, documents, self.engine.model.tokenizer)
        if self.reranker is None or found is None:
            return found
        return await arerank(self.engine, question, found, self.reranker, self.k, config.get("callbacks"))

    def _candidates(self, question: str) -> list[Retrieved] | None:
        """Passages of the own index for a reranker to choose from; None where there is none."""
        if self.reranker is None:
            return None
        return retrieve(self.engine, question, CANDIDATES_PER_PASSAGE * self.k, self.where)

    def _run(self, asked: Asked) -> ModelRun:
        """The run of the model as callbacks hear of it."""
        told: dict[str, str | float | None] = {"model_name": self.engine.model.name, "selector": self.selector}
        told |= {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return ModelRun(asked.text, asked.turns, told, asked.before)

    def _options(self) -> AskOptions:
        how = DecodeOptions(self.max_tokens, self.temperature, self.top_p, self.seed, self.stop)
        return AskOptions(self.k, self.selector, self.policy, self.budget, how, self.where)
