"""Which reader reads which file: one row a suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from epic_rag.loading.document import LoadedDocument, SkippedSource
from epic_rag.loading.docx import load_docx
from epic_rag.loading.html import load_html
from epic_rag.loading.json_ import load_json, load_jsonl
from epic_rag.loading.markdown import load_markdown
from epic_rag.loading.pdf import load_pdf
from epic_rag.loading.pptx import load_pptx
from epic_rag.loading.rst import load_rst
from epic_rag.loading.text import load_text

Reader = Callable[[Path, str], Iterator[LoadedDocument | SkippedSource]]
"""Yields the documents of one file, given its path and its source name; raises OSError or SkipSourceError."""

READERS: Mapping[str, Reader] = MappingProxyType(
    {
        ".txt": load_text,
        ".md": load_markdown,
        ".markdown": load_markdown,
        ".rst": load_rst,
        ".html": load_html,
        ".htm": load_html,
        ".json": load_json,
        ".jsonl": load_jsonl,
        ".pdf": load_pdf,
        ".docx": load_docx,
        ".pptx": load_pptx,
    }
)

SLOW_SUFFIXES = frozenset([".pdf", ".docx", ".pptx"])
"""Formats worth a process of their own: a file takes tens of milliseconds, where one of text takes less than one."""


def reader_for(path: Path) -> Reader | None:
    """The reader for a file's suffix, in any case of letters; None when no reader knows it."""
    return READERS.get(path.suffix.lower())
