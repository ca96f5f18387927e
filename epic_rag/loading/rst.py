"""reStructuredText: the file as it stands, with its section titles.

A title is a line underlined, and perhaps overlined, with one punctuation character; the styles rank in the order in
which the file uses them (docutils, "reStructuredText Markup Specification", Sections).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from unicodedata import east_asian_width

from epic_rag.loading.decode import decode_text
from epic_rag.loading.document import LoadedDocument, clean_text, make_document
from epic_rag.loading.headings import Heading, title_of, to_sections

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1+[ \t]*$")
_ROLE = re.compile(r":[\w.+:-]+:`([^`]*)`")
_TARGET = re.compile(r"\s*<[^<>]*>$")
_MARKUP = re.compile(r"\\(.)|[*`|]+")  # a backslash keeps what follows it


def load_rst(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read a reStructuredText file; its title is the first one of the outermost level.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary or empty.
    """
    text = clean_text(decode_text(path.read_bytes()))
    headings = list(_headings(text))
    yield make_document(source, title_of(headings), text, to_sections(headings))


def _headings(text: str) -> Iterator[Heading]:
    lines = text.split("\n")
    styles: list[tuple[str, bool]] = []
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for row in range(1, len(lines)):
        overlined = _is_overlined(lines, row)
        if not _is_title(lines, row, overlined=overlined) or not (words := _plain(lines[row - 1])):
            continue
        style = (lines[row][0], overlined)
        if style not in styles:
            styles.append(style)
        yield Heading(styles.index(style) + 1, words, starts[row - 2 if overlined else row - 1])


def _is_title(lines: list[str], row: int, *, overlined: bool) -> bool:
    """Whether row is the underline of a title in the row above it."""
    title, underline = lines[row - 1], lines[row].rstrip()
    if not _ADORNMENT.match(underline) or not title.strip() or _ADORNMENT.match(title):
        return False
    if overlined:
        return True
    stands_free = row < 2 or not lines[row - 2].strip() or bool(_ADORNMENT.match(lines[row - 2]))
    return stands_free and not title[0].isspace() and len(underline) >= min(_columns(title.rstrip()), 4)


def _is_overlined(lines: list[str], row: int) -> bool:
    return row >= 2 and lines[row - 2].rstrip() == lines[row].rstrip() and bool(_ADORNMENT.match(lines[row]))


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _plain(title: str) -> str:
    """The words of a title: no roles, link targets or emphasis."""
    title = _ROLE.sub(lambda role: _TARGET.sub("", role.group(1)).lstrip("!~"), title)
    return " ".join(_MARKUP.sub(lambda mark: mark.group(1) or "", title).split())
