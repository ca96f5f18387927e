"""Where a text may be cut: the best border near a place, from headings down to whole characters."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

# Each pattern's match ends at a border, the white space in front of it included. From the best kind to the last resort.
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE = re.compile(r"[.!?…؟۔।][\"'”’»)\]]*\s+|[。！？｡][」』”’）]*\s*")
_LINE = re.compile(r"\n\s*")
_WORD = re.compile(r"\s+|[、，；：・]")
_UNITS = (_PARAGRAPH, _SENTENCE, _LINE)  # what a reader would rather not see cut

_JOINERS = frozenset("\u200d\u200c\ufe0e\ufe0f\u20e3")  # zero width joiners, variation selectors, keycap
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_TAGS = range(0xE0020, 0xE0080)
_JAMO = range(0x1160, 0x1200)  # vowels and finals, which follow their consonant
_MAX_CLUSTER_CHARS = 64  # longer runs of marks are an artist's, and may be cut


def best_border(text: str, reach: int, low: int, high: int, target: int, headings: Sequence[int]) -> int:
    """The place to cut between `low` and `high`, or a little before `low` where that saves a sentence.

    Args:
        text: The whole text.
        reach: Least offset allowed at all, in characters; only ends of paragraphs, sentences and lines may lie below
            `low`, and only when there are none above it.
        low: Least offset wished for.
        high: Greatest offset allowed; `reach <= low <= high`.
        target: Of the borders of the best kind that is there, the one nearest to this offset is taken.
        headings: Offsets of headings, rising.

    Returns:
        Offset of the first character behind the cut, `reach <= offset <= high`.
    """
    inside = headings[bisect_left(headings, low) : bisect_right(headings, high)]
    if inside:
        return _nearest(inside, target)
    for kind, least in _steps(reach, low):
        borders = [end for end in _ends(kind, text, least, high) if least <= end <= high]
        if borders:
            return _nearest(borders, target)
    return _between_characters(text, low, high, target)


def _steps(reach: int, low: int) -> list[tuple[re.Pattern[str], int]]:
    """Kinds of border with the least offset for each, in the order in which they are tried."""
    return [*((kind, low) for kind in _UNITS), *((kind, reach) for kind in _UNITS), (_WORD, low)]


def _ends(kind: re.Pattern[str], text: str, low: int, high: int) -> Iterator[int]:
    """Ends of all matches in the window; a white space that runs over `high` is cut there."""
    for match in kind.finditer(text, max(0, low - 2), high):
        yield match.end()


def _nearest(offsets: Sequence[int], target: int) -> int:
    return min(offsets, key=lambda offset: abs(offset - target))


def _between_characters(text: str, low: int, high: int, target: int) -> int:
    """The offset nearest to the target that splits no visible character, or the target where all of them do."""
    for distance in range(min(max(target - low, high - target), _MAX_CLUSTER_CHARS) + 1):
        for offset in (target - distance, target + distance):
            if low <= offset <= high and not joins(text, offset):
                return offset
    return target


def joins(text: str, offset: int) -> bool:
    """Whether the characters on both sides of an offset make one visible character.

    A light form of the grapheme rules of UAX 29: marks, joiners, variation selectors, skin tones, flags, keycaps, jamo
    and CR LF.
    """
    if not 0 < offset < len(text):
        return False
    before, after = text[offset - 1], text[offset]
    code = ord(after)
    if before in _JOINERS and before == "\u200d":
        return True
    if after in _JOINERS or code in _SKIN_TONES or code in _TAGS or code in _JAMO:
        return True
    if code in _FLAG_LETTERS:
        return _num_flag_letters_before(text, offset) % 2 == 1
    return unicodedata.category(after).startswith("M") or (before == "\r" and after == "\n")


def _num_flag_letters_before(text: str, offset: int) -> int:
    start = offset
    while start > 0 and offset - start < _MAX_CLUSTER_CHARS and ord(text[start - 1]) in _FLAG_LETTERS:
        start -= 1
    return offset - start
