"""Question to passages: a persistent index of passages and the retrievers over it.

The classes that need numpy or LangChain are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from epic_rag.retrievers.errors import IndexCorruptError, IndexReadOnlyError, RetrieverError
from epic_rag.retrievers.index import DocumentRecord, PassageIndex
from epic_rag.retrievers.passage import Passage, passage_id

if TYPE_CHECKING:
    from epic_rag.retrievers.lexical import LexicalIndex as LexicalIndex
    from epic_rag.retrievers.retriever import PassageRetriever as PassageRetriever

_LAZY = {"LexicalIndex": "epic_rag.retrievers.lexical", "PassageRetriever": "epic_rag.retrievers.retriever"}

__all__ = [
    "DocumentRecord",
    "IndexCorruptError",
    "IndexReadOnlyError",
    "LexicalIndex",
    "Passage",
    "PassageIndex",
    "PassageRetriever",
    "RetrieverError",
    "passage_id",
]


def __getattr__(name: str) -> object:
    """Import a lazy class on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
