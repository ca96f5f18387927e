"""Headings with their levels to the tree of sections, for every format that has headings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epic_rag.loading.document import Section


@dataclass(frozen=True, slots=True)
class Heading:
    """One heading as a format's reader finds it.

    Attributes:
        level: 1 for the outermost.
        text: The words alone, free of markup.
        start_char: Offset of its first line, in characters.
    """

    level: int
    text: str
    start_char: int


def to_sections(headings: Iterable[Heading]) -> tuple[Section, ...]:
    """Give each heading its path; a level that was left out leaves no gap in it."""
    sections: list[Section] = []
    open_headings: list[Heading] = []
    for heading in headings:
        while open_headings and open_headings[-1].level >= heading.level:
            open_headings.pop()
        open_headings.append(heading)
        sections.append(Section(tuple(each.text for each in open_headings), heading.start_char))
    return tuple(sections)


def title_of(headings: Iterable[Heading]) -> str:
    """The first heading of the outermost level found; empty when there is none."""
    outermost = min(headings, key=lambda heading: heading.level, default=None)
    return "" if outermost is None else outermost.text
