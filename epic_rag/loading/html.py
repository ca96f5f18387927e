"""HTML: the words a reader would see, block by block, with the headings; scripts, styles and navigation are dropped.

The page is read as a stream of tags and never as a tree: that takes time linear in its size however its tags are
nested or left open, and a tree of 100,000 unclosed paragraphs does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from epic_rag.loading.decode import decode_text
from epic_rag.loading.document import LoadedDocument, SkipSourceError, clean_text, make_document
from epic_rag.loading.headings import Heading, title_of, to_sections

_DROPPED = frozenset(["nav", "noscript", "script", "style", "svg", "template"])
_PREFORMATTED = frozenset(["pre", "textarea"])
_HEADING = re.compile(r"h[1-6]\Z")
_SPACE = re.compile(r"[ \t\n\f\r]+")
_BLOCKS = """
address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6
header hr main ol p pre section summary table ul
"""
_GAPS = {  # white space that an element sets around itself
    **dict.fromkeys(_BLOCKS.split(), "\n\n"),
    **dict.fromkeys(["br", "caption", "li", "option", "tr"], "\n"),
    **dict.fromkeys(["td", "th"], "\t"),
}
_RANK = {"": 0, " ": 1, "\t": 2, "\n": 3, "\n\n": 4}


def load_html(path: Path, source: str) -> Iterator[LoadedDocument]:
    """Read an HTML file; its title is that of the page, or the first heading.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary or empty, or the parser gives it up.
    """
    page = _Page()
    try:
        page.feed(clean_text(decode_text(path.read_bytes())))
        page.close()
    except (AssertionError, ValueError) as error:  # of some declarations, and of references with thousands of digits
        raise SkipSourceError(f"broken HTML: {error}") from error
    title = page.title or title_of(page.headings)
    yield make_document(source, title, page.text, to_sections(page.headings), has_lines=False)


class _Page(HTMLParser):
    """Text as it grows while the tags go by, white space folded as a browser would.

    Attributes:
        headings: Those seen so far.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.headings: list[Heading] = []
        self._parts: list[str] = []
        self._num_chars = 0
        self._gap = ""  # white space owed before the next words
        self._titles: list[str] = []
        self._pre_depth = 0
        self._dropping = ""  # the tag whose content is left out, and how often it is open
        self._drop_depth = 0
        self._heading: tuple[int, int] | None = None  # level and first part of the one that is open

    @property
    def text(self) -> str:
        """The words of the page."""
        return "".join(self._parts)

    @property
    def title(self) -> str:
        """The page's own title; empty when it has none."""
        return " ".join("".join(self._titles).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        if self._dropping:
            self._drop_depth += tag == self._dropping
        elif tag in _DROPPED or tag == "title":
            self._dropping, self._drop_depth = tag, 1
        else:
            gap = _GAPS.get(tag, "")
            if gap == "\n\n":
                self._end_heading()  # whose own end tag was forgotten
            self._owe(gap)
            self._pre_depth += tag in _PREFORMATTED
            if _HEADING.match(tag):
                self._heading = int(tag[1]), len(self._parts)

    def handle_endtag(self, tag: str) -> None:
        """Close an element."""
        if self._dropping:
            self._drop_depth -= tag == self._dropping
            self._dropping = self._dropping if self._drop_depth else ""
            return
        if _HEADING.match(tag):
            self._end_heading()
        if tag in _PREFORMATTED:
            self._pre_depth = max(0, self._pre_depth - 1)
        self._owe(_GAPS.get(tag, ""))

    def handle_data(self, data: str) -> None:
        """Take some words."""
        if self._dropping:
            if self._dropping == "title" and not self._parts:
                self._titles.append(data)
            return
        data = clean_text(data)  # character references can spell what no file may hold
        owed = ""
        if not self._pre_depth:
            data = _SPACE.sub(" ", data)
            self._owe(" " if data.startswith(" ") else "")
            owed = " " if data.endswith(" ") else ""
            data = data.strip(" ")
        if data:
            gap = self._gap if self._parts else ""
            self._parts += (gap, data)
            self._num_chars += len(gap) + len(data)
            self._gap = owed

    def _owe(self, gap: str) -> None:
        if _RANK[gap] > _RANK[self._gap]:
            self._gap = gap

    def _end_heading(self) -> None:
        if self._heading is None:
            return
        level, first_part = self._heading
        self._heading = None
        written = "".join(self._parts[first_part:])
        if written.strip():
            start_char = self._num_chars - len(written.lstrip())
            self.headings.append(Heading(level, " ".join(written.split()), start_char))
