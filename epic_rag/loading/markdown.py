"""Markdown: the file as it stands, with its ATX and setext headings (CommonMark 4.2, 4.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from epic_rag.loading.decode import decode_text
from epic_rag.loading.document import LoadedDocument, clean_text, make_document
from epic_rag.loading.headings import Heading, title_of, to_sections

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?$")
_CLOSING_HASHES = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_NO_PARAGRAPH = re.compile(r"[ \t]*(?:$|[>|]|[-*+][ \t]|\d+[.)][ \t]| {4})")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"[ \t]*\{[ \t]*[#.:][^{}]*\}[ \t]*$")  # MkDocs and Pandoc: `# Title { #anchor }`
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[*`]+|</?[A-Za-z][^>]*>")

_LONGEST_HEADING = 1000  # characters; what follows is cut, for some of these patterns take quadratic time


def load_markdown(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read a Markdown file; its title is the front matter's, or the first heading.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary or empty.
    """
    text = clean_text(decode_text(path.read_bytes()))
    front_matter = _FRONT_MATTER.match(text)
    headings = list(_headings(text, front_matter.end() if front_matter else 0))
    title = title_of(headings)
    if front_matter and (named := _FRONT_TITLE.search(front_matter.group())):
        title = named.group(1).strip("\"'")
    yield make_document(source, title, text, to_sections(headings))


def _headings(text: str, start_char: int) -> Iterator[Heading]:
    fence: str | None = None
    paragraph: tuple[int, str] | None = None  # the line before, when a setext underline would make it a heading
    for line in text[start_char:].split("\n"):
        if fence is not None:
            fence = None if _closes(fence, line) else fence
        elif opened := _FENCE.match(line):
            fence, paragraph = opened.group(1), None
        elif atx := _ATX.match(line):
            paragraph = None
            if words := _plain(_CLOSING_HASHES.sub("", (atx.group(2) or "")[:_LONGEST_HEADING])):
                yield Heading(len(atx.group(1)), words, start_char)
        elif paragraph is not None and (underline := _SETEXT.match(line)):
            if words := _plain(paragraph[1][:_LONGEST_HEADING]):
                yield Heading(1 if underline.group(1)[0] == "=" else 2, words, paragraph[0])
            paragraph = None
        else:
            paragraph = None if _NO_PARAGRAPH.match(line) else (start_char, line)
        start_char += len(line) + 1


def _closes(fence: str, line: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _plain(heading: str) -> str:
    """The words of a heading: no anchors, links, emphasis or tags."""
    heading = _LINK.sub(r"\1", _ATTRIBUTES.sub("", heading))
    return " ".join(_MARKUP.sub("", heading).split())
