"""Plain text: the whole file is the text, without a title."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from epic_rag.loading.decode import decode_text
from epic_rag.loading.document import LoadedDocument, clean_text, make_document


def load_text(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read a text file.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary or empty.
    """
    yield make_document(source, "", clean_text(decode_text(path.read_bytes())))
