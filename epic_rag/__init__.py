"""epic-rag: LangChain RAG with a persistent KV store. Documents are prefilled once, at ingest.

Nothing heavy is imported here; names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epic_rag.ask import AskOptions
    from epic_rag.chain import EpicRAG
    from epic_rag.chat_model import ChatEpic
    from epic_rag.decode import DecodeOptions
    from epic_rag.document_index import EpicIndex
    from epic_rag.engine import Engine, open_engine
    from epic_rag.errors import EpicError
    from epic_rag.ingest import IngestOptions

try:
    __version__ = version("epic-rag")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

_HOMES = {
    "AskOptions": "ask",
    "ChatEpic": "chat_model",
    "DecodeOptions": "decode",
    "Engine": "engine",
    "EpicIndex": "document_index",
    "EpicError": "errors",
    "EpicRAG": "chain",
    "IngestOptions": "ingest",
    "open_engine": "engine",
}

__all__ = [
    "AskOptions",
    "ChatEpic",
    "DecodeOptions",
    "Engine",
    "EpicError",
    "EpicIndex",
    "EpicRAG",
    "IngestOptions",
    "__version__",
    "open_engine",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"epic_rag.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'epic_rag' has no attribute '{name}'")
