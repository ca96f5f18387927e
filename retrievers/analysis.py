"""Text to the words that are searched for: one rule for passages and questions, in any script.

Case, accents and width are folded; English plurals lose their s; scripts written without spaces (Han, kana, Hangul,
Thai, Lao, Khmer, Myanmar) become bigrams of characters, since there a whole sentence would be one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

ANALYZER_VERSION = 1  # raise at every change of the rule: lexical indexes built by another one are built again

# Latin, Greek and Cyrillic accents, Hebrew points, Arabic vowels and tatweel, soft hyphen, zero width and direction
# marks. The signs of Indic scripts and the voicing marks of kana are letters' parts and stay.
_DROPPED = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u200b-\u200f\u2060\ufeff]"
)
_UNSPACED = (
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003134f"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17d3"
)
_SIGNS = (
    "\u0900-\u0963\u0966-\u0dff\u0f18-\u0fbc"  # vowel signs and the like, which `\w` leaves out, with their letters
)
_WORD = re.compile(rf"([{_UNSPACED}]+)|((?:[^\W_{_UNSPACED}]|[{_SIGNS}])+)")

_ENGLISH = """
a an and are as at be been but by did do does for from had has have how i if in into is it its me my of on or our s so
t that the their them then there these they this to was we were what when where which who whom why will with would you
your
"""
STOP_WORDS = frozenset(_ENGLISH.split())


def words(text: str) -> list[str]:
    """The words of a passage in order, repetitions kept; unspaced scripts give bigrams and single characters."""
    found: list[str] = []
    for run, word in _runs(text):
        found += [*_bigrams(run), *run] if run else [_singular(word)]
    return found


def query_words(query: str) -> list[str]:
    """The words of a question: stop words are left out unless there is nothing else.

    A single character of an unspaced script is looked for as such, a longer run by its bigrams alone.
    """
    found: list[str] = []
    for run, word in _runs(query):
        found += (_bigrams(run) or [run]) if run else [_singular(word)]
    return [word for word in found if word not in STOP_WORDS] or found


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """Either a run of an unspaced script or a word, the other one empty."""
    for match in _WORD.finditer(_folded(text)):
        yield match.group(1) or "", match.group(2) or ""


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", _DROPPED.sub("", decomposed)).casefold()


def _bigrams(run: str) -> list[str]:
    return [run[start : start + 2] for start in range(len(run) - 1)]


def _singular(word: str) -> str:
    """Harman's S-stemmer ("How effective is suffixing?", JASIS 1991), for plain ASCII words."""
    if len(word) < 4 or not word.endswith("s") or not word.isascii():
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    return word if word.endswith(("aes", "ees", "oes", "us", "ss")) else word[:-1]
