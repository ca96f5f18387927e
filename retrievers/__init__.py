"""Question to passages: a persistent index of passages and the retrievers over it.

The classes that need numpy or LangChain are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from epic_rag.retrievers.errors import EmbedderError, IndexCorruptError, IndexReadOnlyError, RetrieverError
from epic_rag.retrievers.index import DocumentRecord, PassageIndex
from epic_rag.retrievers.passage import Passage, passage_id
from epic_rag.retrievers.search import Search
from epic_rag.retrievers.where import Where

if TYPE_CHECKING:
    from epic_rag.retrievers.dense import DenseIndex as DenseIndex
    from epic_rag.retrievers.fusion import ConvexCombination as ConvexCombination
    from epic_rag.retrievers.fusion import ReciprocalRanks as ReciprocalRanks
    from epic_rag.retrievers.hybrid import HybridIndex as HybridIndex
    from epic_rag.retrievers.lexical import LexicalIndex as LexicalIndex
    from epic_rag.retrievers.record_manager import SQLiteRecordManager as SQLiteRecordManager
    from epic_rag.retrievers.retriever import PassageRetriever as PassageRetriever

_LAZY = {
    "ConvexCombination": "epic_rag.retrievers.fusion",
    "DenseIndex": "epic_rag.retrievers.dense",
    "HybridIndex": "epic_rag.retrievers.hybrid",
    "LexicalIndex": "epic_rag.retrievers.lexical",
    "PassageRetriever": "epic_rag.retrievers.retriever",
    "ReciprocalRanks": "epic_rag.retrievers.fusion",
    "SQLiteRecordManager": "epic_rag.retrievers.record_manager",
}

__all__ = [
    "ConvexCombination",
    "DenseIndex",
    "DocumentRecord",
    "EmbedderError",
    "HybridIndex",
    "IndexCorruptError",
    "IndexReadOnlyError",
    "LexicalIndex",
    "Passage",
    "PassageIndex",
    "PassageRetriever",
    "ReciprocalRanks",
    "RetrieverError",
    "SQLiteRecordManager",
    "Search",
    "Where",
    "passage_id",
]


def __getattr__(name: str) -> object:
    """Import a lazy class on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
