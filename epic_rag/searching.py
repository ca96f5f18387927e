"""Which search an engine finds its passages with, by name, and whose embeddings it uses."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, quote_plus

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

    if "?" in spec:  # no model is called so, and what follows may be a key
        named = spec.partition("?")[0]
        raise ConfigError(
            f"embeddings '{named}?…': expected module:Class?argument=value, both names as Python has them"
        )
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

    where, values = f"embeddings '{module}:{name}'", dict(parse_qsl(arguments, keep_blank_values=True))
    found = _imported(where, module, name, values.values())
    if isinstance(found, type) and issubclass(found, Embeddings):
        try:
            return found(**values)
        except Exception as error:  # noqa: BLE001 - whatever its constructor raises
            told = _told(error, values.values())
            raise ConfigError(f"{where} cannot be made: {type(error).__name__}: {told}") from None
    if isinstance(found, Embeddings) and not arguments:
        return found
    kind = "a class" if isinstance(found, type) else f"an object of {type(found).__name__}"
    given = " with arguments" if arguments else ""
    raise ConfigError(f"{where} is {kind}{given}; expected a class or an object of LangChain Embeddings")


def _imported(where: str, module: str, name: str, values: Iterable[str]) -> object:
    """What a module calls `name`; an object is made by the import itself, which may fail as its constructor does."""
    try:
        imported = importlib.import_module(module)
        if hasattr(imported, name):
            found: object = getattr(imported, name)
            return found
    except ImportError as error:
        told = _told(error, values)
        raise ConfigError(f"{where}: {told}. Install the package, or put the module where Python finds it") from None
    except Exception as error:  # noqa: BLE001 - whatever somebody's module raises
        told = _told(error, values)
        raise ConfigError(f"{where}: the module cannot be imported: {type(error).__name__}: {told}") from None
    raise ConfigError(f"{where}: the module has no {name}. Check the name")


def _told(error: Exception, values: Iterable[str]) -> str:
    """An error in words, without the values of the arguments: one of them may be a key.

    The text of a pydantic error shows its whole input, also what came from a module or the environment.
    """
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        text = "; ".join(": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in faults)
    else:
        text = str(error)
    spelled = {
        way for value in values for way in (value, repr(value)[1:-1], quote(value, ""), quote_plus(value)) if way
    }
    longest_first = sorted(spelled, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), "***", text) if spelled else text
