"""The LangChain face of lexical search."""

from __future__ import annotations

from typing import Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field, model_validator

from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.lexical import LexicalIndex


class PassageRetriever(BaseRetriever):
    """BM25 over a `PassageIndex` as a LangChain retriever; safe for threads.

    Documents carry the passage's id and its text exactly as the model reads it; the metadata are source, position,
    title, line and score.

    Attributes:
        index: The passages.
        lexical: The search over them; made from `index` when not given.
        k: Passages to return at most; `invoke(query, k=…)` sets it for one call.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: PassageIndex = Field(exclude=True)
    lexical: LexicalIndex | None = Field(default=None, exclude=True)
    k: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _search_the_index(self) -> Self:
        if self.lexical is None:
            self.lexical = LexicalIndex(self.index)
        elif self.lexical.index is not self.index:
            raise ValueError("lexical searches another index; leave it out, or make it from the same PassageIndex")
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        """The best passages by falling score, `k` of them or fewer."""
        return self._find(query, k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        """The same from a thread, so that the event loop goes on."""
        return await run_in_executor(None, self._find, query, k)

    def _find(self, query: str, k: int | None) -> list[Document]:
        wanted = self.k if k is None else k
        if wanted < 1:
            raise ValueError(f"k must be at least 1, got {wanted}")
        if self.lexical is None:
            raise ValueError("lexical was set to None; make a new PassageRetriever")
        return [passage.to_document(score) for passage, score in self.lexical.search(query, wanted)]
