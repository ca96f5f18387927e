"""A passage: one chunk of a document as the index keeps it and the model reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.documents import Document


def passage_id(source: str, position: int, text: str) -> str:
    """Digest that names a passage: sha256 over length-prefixed source, position and text.

    Returns:
        64 hex digits.
    """
    digest = hashlib.sha256()
    for field in (source.encode(), str(position).encode(), text.encode()):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Passage:
    """One chunk of one document.

    Attributes:
        id: Hex digest over source, position and text (see `passage_id`).
        source: Where the document came from: a path, or `file.jsonl#record`.
        position: Ordinal of the chunk in its document, from 0.
        title: Title of the document; may be empty.
        text: Exactly what the model will read, the carried heading line included.
        token_ids: `text` in the model's tokens, no special tokens.
        start_char: Offset of the chunk's body in the document's text, in characters.
        line: Line of the source file where the body starts, from 1; 0 when unknown.
    """

    id: str
    source: str
    position: int
    title: str
    text: str
    token_ids: tuple[int, ...]
    start_char: int = 0
    line: int = 0

    @classmethod
    def create(
        cls,
        *,
        source: str,
        position: int,
        title: str,
        text: str,
        token_ids: Sequence[int],
        start_char: int = 0,
        line: int = 0,
    ) -> Passage:
        """Make a passage with the id that belongs to its source, position and text."""
        name = passage_id(source, position, text)
        return cls(name, source, position, title, text, tuple(token_ids), start_char, line)

    def to_document(self, score: float | None = None) -> Document:
        """The passage as a LangChain `Document`.

        Args:
            score: How well it answers the query, larger is better; None leaves it out of the metadata.

        Returns:
            Document with `id`, the text as `page_content`, and metadata source, position, title, line (and score).
        """
        from langchain_core.documents import Document

        metadata: dict[str, str | int | float] = {
            "source": self.source,
            "position": self.position,
            "title": self.title,
            "line": self.line,
        }
        if score is not None:
            metadata["score"] = float(score)
        return Document(id=self.id, page_content=self.text, metadata=metadata)
