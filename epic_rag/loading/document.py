"""What loading yields: a document's text with its headings, or a source left out and the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """Where a heading stands.

    Attributes:
        path: Headings from the outermost to this one.
        start_char: Offset of the heading's line in the document's text, in characters.
    """

    path: tuple[str, ...]
    start_char: int


@dataclass(frozen=True, slots=True)
class LoadedDocument:
    """One document, read.

    Attributes:
        source: Its name: a posix path, or `file.jsonl#record` for one record of a file.
        title: Its title as the document itself says; empty when it has none. Never the file's name: the model reads the
            title, so that a renamed file would have to be encoded again.
        text: Its text; lines end in a line feed.
        digest: sha256 over title and text, 64 hex digits.
        sections: Its headings, by rising `start_char`.
        has_lines: Whether lines of `text` are lines of the source file (not so for HTML, PDF and records).
    """

    source: str
    title: str
    text: str
    digest: str
    sections: tuple[Section, ...] = ()
    has_lines: bool = True


@dataclass(frozen=True, slots=True)
class SkippedSource:
    """A source that was asked for or found, and left out.

    Attributes:
        source: Its name.
        reason: Why, in words a user can act on.
    """

    source: str
    reason: str


EMPTY = "empty"
"""The reason for a source that was read and holds no text."""


class SkipSourceError(Exception):
    """Raised by a reader of one format for a source that it cannot read; the text is the reason."""


def clean_text(text: str) -> str:
    r"""Text that every later stage can hold: line ends as `\n`, and no lone surrogates or NUL characters.

    JSON escapes and PDF fonts can spell both; neither can be encoded or tokenised, so that each becomes U+FFFD.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def make_document(
    source: str, title: str, text: str, sections: Iterable[Section] = (), *, has_lines: bool = True
) -> LoadedDocument:
    """Make a document of text that `clean_text` has seen.

    Raises:
        SkipSourceError: Nothing but white space in it.
    """
    if not text.strip():
        raise SkipSourceError(EMPTY)
    title = " ".join(clean_text(title).split())
    digest = hashlib.sha256()
    for field in (title.encode(), text.encode()):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return LoadedDocument(source, title, text, digest.hexdigest(), tuple(sections), has_lines)
