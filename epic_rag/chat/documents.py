"""Documents as callers have them, as LangChain's."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping

from langchain_core.documents import Document

from epic_rag.errors import ConfigError

DocumentLike = Document | str | Mapping[str, object]
"""A LangChain document, its text alone, or a dict with `page_content` or `text`."""

_METADATA = ("title", "source", "position", "score", "line")


def as_documents(given: object) -> list[Document]:
    """The documents of the keyword `documents`, best first.

    Args:
        given: one `DocumentLike` or several.

    Raises:
        ConfigError: something else; says what and where.
    """
    if isinstance(given, (Document, str, Mapping)):
        given = [given]
    if not isinstance(given, Iterable) or isinstance(given, Iterator):  # a retry would find an iterator at its end
        raise ConfigError(f"documents: expected a list of Document, str or dict, got {type(given).__name__}: {given!r}")
    return [_document(one, f"document {number}") for number, one in enumerate(given, 1)]


def _document(one: object, name: str) -> Document:
    if isinstance(one, Document):
        return one
    if isinstance(one, str):
        return Document(page_content=one)
    if isinstance(one, Mapping):
        text = one.get("page_content", one.get("text"))
        if isinstance(text, str):
            return Document(page_content=text, metadata=_metadata(one), id=_string(one.get("id")))
        raise ConfigError(
            f"{name} is a dict without text: expected a string under 'page_content' or 'text', got the keys "
            f"{sorted(map(str, one))}"
        )
    raise ConfigError(f"{name}: expected a Document, a string or a dict, got {type(one).__name__}")


def _metadata(one: Mapping[str, object]) -> dict[str, object]:
    """What stands under `metadata`, and what stands beside the text under the names of a passage's metadata."""
    nested = one.get("metadata")
    beside = {name: one[name] for name in _METADATA if name in one}
    return {**beside, **(nested if isinstance(nested, Mapping) else {})}


def from_block(block: Mapping[str, object], name: str) -> Document:
    """The document of a `text-plain` content block.

    Args:
        block: with `text` or `base64`, and perhaps a `title`.
        name: what the document is called where the block has no title; so the same place always has the same name.

    Raises:
        ConfigError: the block only points elsewhere, or what it holds is no text.
    """
    title = _string(block.get("title")) or ""
    metadata = {"title": title, "source": title or name}
    return Document(page_content=_block_text(block), metadata=metadata)


def _block_text(block: Mapping[str, object]) -> str:
    text, encoded = block.get("text"), block.get("base64")
    if isinstance(text, str):
        return text
    if not isinstance(encoded, str):
        raise ConfigError(
            "a text-plain block without text: expected 'text' or 'base64', got the keys "
            f"{sorted(map(str, block))}. Nothing is fetched for a chat: load the text and pass it on"
        )
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"a text-plain block's base64 is not text in UTF-8: {error}") from None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
