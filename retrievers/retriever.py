"""The LangChain face of every search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field, SkipValidation, model_validator

from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.lexical import LexicalIndex
from epic_rag.retrievers.search import Search


class PassageRetriever(BaseRetriever):
    """Search over a `PassageIndex` as a LangChain retriever; safe for threads.

    Documents carry the passage's id and its text exactly as the model reads it; the metadata are source, position,
    title, line and score.

    Example:
        ```python
        PassageRetriever(index=index)  # by words
        PassageRetriever(search=DenseIndex(index, embeddings), where={"source": "*/guides/*"})
        ```

    Attributes:
        index: The passages; those of `search` when not given.
        search: How they are found, such as a `DenseIndex` or a `HybridIndex`; a `LexicalIndex` when not given.
        k: Passages to return at most; `invoke(query, k=…)` sets it for one call.
        where: Only passages whose fields match are ranked; `invoke(query, where=…)` sets it for one call.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: PassageIndex | None = Field(default=None, exclude=True)
    search: SkipValidation[Search] | None = Field(default=None, exclude=True)
    k: int = Field(default=8, ge=1)
    where: Mapping[str, str] | None = None

    @model_validator(mode="after")
    def _search_the_index(self) -> Self:
        if self.search is None:
            if self.index is None:
                raise ValueError("expected index or search, got neither; give a PassageIndex or a search over one")
            self.search = LexicalIndex(self.index)
        elif self.index is None:
            self.index = self.search.index
        elif self.search.index is not self.index:
            raise ValueError("search is over another index; leave index out, or make both from one PassageIndex")
        return self

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[Document]:
        """The best passages by falling score, `k` of them or fewer."""
        return self._find(query, k, where)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[Document]:
        """The same from a thread, so that the event loop goes on."""
        return await run_in_executor(None, self._find, query, k, where)

    def _find(self, query: str, k: int | None, where: Mapping[str, str] | None) -> list[Document]:
        wanted = self.k if k is None else k
        if wanted < 1:
            raise ValueError(f"k must be at least 1, got {wanted}")
        if self.search is None:
            raise ValueError("search was set to None; make a new PassageRetriever")
        found = self.search.search(query, wanted, self.where if where is None else where)
        return [passage.to_document(score) for passage, score in found]
