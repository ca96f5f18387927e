"""Word documents (.docx): paragraphs, headings, lists, tables and notes, through python-docx, an optional package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from epic_rag.loading.document import LoadedDocument, SkipSourceError, make_document
from epic_rag.loading.headings import Heading, title_of, to_sections
from epic_rag.loading.office import MISSING_REASON, Blocks, reading, table_text

if TYPE_CHECKING:
    from docx.document import Document
    from docx.table import Table
    from docx.text.paragraph import Paragraph

_HEADING_STYLE = re.compile(r"heading (\d)$", re.IGNORECASE)
_NOTE_PARTS = ("footnotes", "endnotes")
_WORDS = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_UNTITLED = frozenset(["", "untitled", "word document", "document"])


def load_docx(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read a Word document; its title is that of its properties, a paragraph styled as title, or the first heading.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: python-docx is missing, or the file is encrypted, damaged or without text.
    """
    try:
        import docx
    except ImportError as error:
        raise SkipSourceError(MISSING_REASON.format(kind="docx")) from error
    with reading(path, "docx"):
        with path.open("rb") as file:
            document = docx.Document(file)
        blocks, headings = Blocks(), list[Heading]()
        styled_title = _read_body(document, blocks, headings)
        for note in _notes(document):
            blocks.add(note)
        named = (document.core_properties.title or "").strip()
    title = styled_title or ("" if named.lower() in _UNTITLED else named) or title_of(headings)
    yield make_document(source, title, blocks.text, to_sections(headings), has_lines=False)


def _read_body(document: Document, blocks: Blocks, headings: list[Heading]) -> str:
    """Paragraphs and tables in their order; returns the first paragraph that is styled as the title."""
    from docx.table import Table

    title = ""
    for item in document.iter_inner_content():
        if isinstance(item, Table):
            blocks.add(_table(item))
            continue
        start_char = blocks.add(_text(item))
        style = _style_name(item)
        if start_char is None:
            continue
        if style.lower() == "title":
            title = title or " ".join(item.text.split())
        elif level := _HEADING_STYLE.match(style):
            headings.append(Heading(int(level.group(1)), " ".join(item.text.split()), start_char))
    return title


def _text(paragraph: Paragraph) -> str:
    """The words of a paragraph, with a dash when it is an item of a list."""
    words = paragraph.text
    return f"- {words}" if words.strip() and _style_name(paragraph).lower().startswith("list") else words


def _style_name(paragraph: Paragraph) -> str:
    style = paragraph.style
    return "" if style is None else style.name or ""


def _table(table: Table) -> str:
    """Rows as lines; a cell that spans several columns stands once, tables within cells become their words."""
    rows = []
    for row in table.rows:
        cells, last = list[str](), None
        for cell in row.cells:
            if cell._tc is not last:
                last = cell._tc
                cells.append(" ".join([cell.text, *(_table(inner) for inner in cell.tables)]))
        rows.append(cells)
    return table_text(rows)


def _notes(document: Document) -> Iterator[str]:
    """Footnotes and endnotes, which python-docx has no reader for."""
    from docx.oxml.parser import parse_xml

    for relation in document.part.rels.values():
        if relation.is_external or relation.reltype.rpartition("/")[2] not in _NOTE_PARTS:
            continue
        for note in parse_xml(relation.target_part.blob):
            if note.get(f"{_WORDS}type") is None:  # those with a type are the lines above the notes
                lines = ["".join(text.text or "" for text in line.iter(f"{_WORDS}t")) for line in note]
                yield " ".join(" ".join(lines).split())
