"""Slides (.pptx): titles as headings, text, tables and speaker's notes, through python-pptx, an optional package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from epic_rag.loading.document import LoadedDocument, SkipSourceError, make_document
from epic_rag.loading.headings import Heading, to_sections
from epic_rag.loading.office import MISSING_REASON, Blocks, reading, table_text

if TYPE_CHECKING:
    from pptx.shapes.base import BaseShape
    from pptx.slide import Slide

_UNTITLED = frozenset(["", "powerpoint presentation", "presentation", "untitled"])


def load_pptx(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read a presentation; its title is that of its properties, or the first slide's.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: python-pptx is missing, or the file is encrypted, damaged or without text.
    """
    try:
        import pptx
    except ImportError as error:
        raise SkipSourceError(MISSING_REASON.format(kind="pptx")) from error
    with reading(path, "pptx"):
        with path.open("rb") as file:
            presentation = pptx.Presentation(file)
        blocks, headings = Blocks(), list[Heading]()
        for slide in presentation.slides:
            _read_slide(slide, blocks, headings)
        named = (presentation.core_properties.title or "").strip()
    title = "" if named.lower() in _UNTITLED else named
    if not title and headings:
        title = headings[0].text
    yield make_document(source, title, blocks.text, to_sections(headings), has_lines=False)


def _read_slide(slide: Slide, blocks: Blocks, headings: list[Heading]) -> None:
    """The title, then the other shapes from top to bottom, then the notes."""
    title = slide.shapes.title
    if title is not None and title.has_text_frame:
        words = " ".join(title.text_frame.text.split())
        start_char = blocks.add(words)
        if start_char is not None:
            headings.append(Heading(1, words, start_char))
    others = [shape for shape in slide.shapes if title is None or shape.shape_id != title.shape_id]
    for words in _texts(others):
        blocks.add(words)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = slide.notes_slide.notes_text_frame.text
        blocks.add(f"Notes: {notes}" if notes.strip() else "")


def _texts(shapes: Iterable[BaseShape]) -> Iterator[str]:
    """The words of shapes, row by row as they stand on the slide; groups are opened."""
    from pptx.shapes.graphfrm import GraphicFrame
    from pptx.shapes.group import GroupShape

    for shape in sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0)):
        if isinstance(shape, GroupShape):
            yield from _texts(shape.shapes)
        elif isinstance(shape, GraphicFrame) and shape.has_table:
            yield table_text([cell.text for cell in row.cells if not cell.is_spanned] for row in shape.table.rows)
        elif shape.has_text_frame:
            yield shape.text_frame.text.replace("\v", "\n")  # type: ignore[attr-defined]  # has_text_frame says so
