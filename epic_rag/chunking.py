"""Documents to chunks: pieces of bounded tokens, cut where the text allows it, each under its heading line.

The splitter walks through the text once. At each place it finds how many characters fit, by a few trial encodings of
one chunk's length, and takes the best border behind the middle of those; when what is left is less than two chunks it
is cut in halves, so that no scrap remains. It never encodes more than a few chunks at a time, which keeps a line of
megabytes linear, and it relies on nothing but `encode`, so that the ids are exact whatever the tokenizer merges.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from epic_rag.borders import best_border
from epic_rag.config import DEFAULT_CHUNK_TOKENS
from epic_rag.loading.document import LoadedDocument

Encode = Callable[[str], list[int]]
"""Text to token ids, without special tokens."""

MIN_CHUNK_TOKENS = 16
HEADING_SEPARATOR = " > "
CLOSING = "\n\n"  # ends every chunk, so that chunks can stand one behind the other

_HEADING_SHARE = 4  # the heading line may take a quarter of a chunk
_MAX_HEADING_CHARS = 1000
_MAX_INDENT_CHARS = 80
_LEAST_FILL = 0.5  # of what fits: borders below are not looked at,
_LEAST_REACH = 0.3  # or down to here, where otherwise a sentence would be cut
_LEAST_HALF = 0.35  # of the rest, when the rest is cut in two
_FIRST_GUESS_CHARS_PER_TOKEN = 4.0
_GOOD_FILL = 0.9  # a trial that fills this much of the budget need not be improved
_AIM = 0.97  # of the budget, so that a good guess is not a token too long
_MAX_TRIALS = 8
_MAX_GROWTH = 4  # from one trial to the next, so that a text is never encoded far beyond a chunk
_SOLID = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One unit of ingest.

    Attributes:
        text: What the model reads: the heading line (if any), the body, a blank line.
        token_ids: `text` in tokens, exactly `encode(text)`.
        position: Ordinal in the document, from 0.
        start_char: Offset of the body in the document's text, in characters.
        line: Line of the source file where the body starts, from 1; 0 when the text has no such lines.
        title: The document's title.
    """

    text: str
    token_ids: tuple[int, ...]
    position: int
    start_char: int
    line: int
    title: str


def chunk_document(
    document: LoadedDocument, encode: Encode, chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> Iterator[Chunk]:
    """Cut a document into chunks without overlap.

    The bodies, one behind the other, are the document's text but for white space at the cuts. Text of white space
    alone gives no chunk.

    Args:
        document: What to cut.
        encode: Tokenizer to count with, without special tokens.
        chunk_tokens: Most tokens a chunk may have, heading line and closing blank line included.

    Returns:
        The chunks in order, made as they are asked for.

    Raises:
        ValueError: `chunk_tokens` is below 16, or too small for one character of the text in this tokenizer.
    """
    if chunk_tokens < MIN_CHUNK_TOKENS:
        raise ValueError(
            f"chunk_tokens must be at least {MIN_CHUNK_TOKENS}, got {chunk_tokens}; 128 to 512 suit most documents"
        )
    starts = [section.start_char for section in document.sections]
    return _Splitter(document, encode, chunk_tokens, starts).chunks()


@dataclass(frozen=True, slots=True)
class _Heading:
    """A heading line with its line feed, or nothing, and the tokens of a chunk that has no body yet."""

    line: str
    num_tokens: int


@dataclass(slots=True)
class _Splitter:
    """One pass over one document."""

    document: LoadedDocument
    encode: Encode
    chunk_tokens: int
    section_starts: list[int]
    chars_per_token: float = _FIRST_GUESS_CHARS_PER_TOKEN
    headings: dict[tuple[str, ...], _Heading] = field(default_factory=dict)

    def chunks(self) -> Iterator[Chunk]:
        """Walk through the text, one chunk a step."""
        text, title = self.document.text, self.document.title
        end = len(text.rstrip())
        start, position = _line_start(text, 0, end), 0
        line, counted = 1, 0
        while start < end:
            cut, piece, token_ids = self._next(start, end)
            num_chars = len(text[start:cut].rstrip())
            if num_chars == 0:  # no more than a part of a deep indentation fitted
                start = _first_solid(text, cut, end)
                continue
            line, counted = line + text.count("\n", counted, start), start
            yield Chunk(piece, tuple(token_ids), position, start, line if self.document.has_lines else 0, title)
            start, position = _line_start(text, start + num_chars, end), position + 1

    def _next(self, start: int, end: int) -> tuple[int, str, list[int]]:
        """Where the chunk that begins at `start` ends, its text and its ids."""
        heading = self._heading(start)
        fits = self._fitting_chars(start, end, heading)
        while True:
            cut = self._cut(start, end, fits)
            piece = _render(heading.line, self.document.text[start:cut])
            token_ids = self.encode(piece)
            if len(token_ids) <= self.chunk_tokens:
                return cut, piece, token_ids
            if fits == 1:
                raise self._too_small(start)
            fits = max(1, min(fits - 1, int((cut - start) * _GOOD_FILL)))  # fewer characters, more tokens: it happens

    def _cut(self, start: int, end: int, fits: int) -> int:
        rest = end - start
        if fits >= rest:
            return end
        if rest > 2 * fits:
            low, high, target = max(1, int(fits * _LEAST_FILL)), fits, fits
        else:
            high = max(1, min(fits, int(rest * (1 - _LEAST_HALF))))
            low, target = min(high, max(1, int(rest * _LEAST_HALF))), min(high, rest // 2)
        reach = min(low, max(1, int(fits * _LEAST_REACH)))
        return best_border(
            self.document.text, start + reach, start + low, start + high, start + target, self.section_starts
        )

    def _fitting_chars(self, start: int, end: int, heading: _Heading) -> int:
        """About as many characters from `start` as the budget holds, and never more, found by interpolation."""
        text, rest = self.document.text, end - start
        room = self.chunk_tokens - heading.num_tokens
        fits, too_many = 0, rest + 1
        guess = min(rest, max(1, int(room * self.chars_per_token)))
        for _ in range(_MAX_TRIALS):
            used = len(self.encode(_render(heading.line, text[start : start + guess]))) - heading.num_tokens
            if used <= room:
                fits = guess
                if fits == rest or used >= _GOOD_FILL * room:
                    break
            else:
                too_many = guess
            wished = int(_AIM * room * guess / max(1, used))
            guess = _next_guess(fits, too_many, min(wished, rest))
            if guess == fits:
                break
        while fits == 0:  # dense text behind a thin beginning: halve until something fits
            if too_many == 1:
                raise self._too_small(start)
            too_many //= 2
            if len(self.encode(_render(heading.line, text[start : start + too_many]))) <= self.chunk_tokens:
                fits = too_many
        self.chars_per_token = fits / max(1, room)
        return fits

    def _too_small(self, start: int) -> ValueError:
        return ValueError(
            f"chunk_tokens = {self.chunk_tokens} is too small for the character {self.document.text[start]!r} at "
            f"offset {start} of {self.document.source}, which takes more in this tokenizer; raise chunk_tokens"
        )

    def _heading(self, start: int) -> _Heading:
        """Title and headings in force at `start`, without the one that the body itself begins with."""
        title, path = self.document.title, tuple[str, ...]()
        place = bisect_right(self.section_starts, start) - 1
        if place >= 0:
            section = self.document.sections[place]
            begins_here = section.start_char == start
            path = section.path[:-1] if begins_here else section.path
            if begins_here and section.path == (title,):
                title = ""
        if title and path[:1] != (title,):
            path = (title, *path)
        if path not in self.headings:
            line = self._heading_line(path)
            self.headings[path] = _Heading(line, len(self.encode(_render(line, ""))))
        return self.headings[path]

    def _heading_line(self, path: tuple[str, ...]) -> str:
        """A path in its share of the budget: whole, or its first and last part, or the beginning of its first."""
        if not path:
            return ""
        most_tokens = self.chunk_tokens // _HEADING_SHARE
        for parts in (path, (path[0], path[-1])):
            line = HEADING_SEPARATOR.join(parts) + "\n"
            if len(line) <= _MAX_HEADING_CHARS and len(self.encode(line)) <= most_tokens:
                return line
        words = path[0][:_MAX_HEADING_CHARS]
        while words and len(self.encode(f"{words}…\n")) > most_tokens:
            words = words[: len(words) * 3 // 4]
        return f"{words}…\n" if words else ""


def _next_guess(fits: int, too_many: int, wished: int) -> int:
    """The next number of characters to try: the wished one inside the bracket, else the bracket's middle."""
    if fits:
        wished = min(wished, _MAX_GROWTH * fits)
    return wished if fits < wished < too_many else (fits + too_many) // 2


def _render(heading_line: str, body: str) -> str:
    return f"{heading_line}{body.rstrip()}{CLOSING}"


def _first_solid(text: str, start: int, end: int) -> int:
    """Offset of the first character that is not white space, or `end`."""
    found = _SOLID.search(text, start, end)
    return found.start() if found else end


def _line_start(text: str, start: int, end: int) -> int:
    """Where the next body begins: behind white space, but with its first line's indentation."""
    solid = _first_solid(text, start, end)
    begin = text.rfind("\n", start, solid) + 1
    if begin == 0 and start > 0:  # the line began before `start`
        return solid
    return begin if solid - begin <= _MAX_INDENT_CHARS else solid
