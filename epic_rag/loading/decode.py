"""Bytes to text: UTF-8 first, then a byte order mark, then a guess from the bytes; never the locale."""

from __future__ import annotations

import codecs
import re

from epic_rag.loading.document import SkipSourceError

_BINARY_REASON = "looks binary: not text in UTF-8, UTF-16 or any encoding that can be told from its bytes"
_MARKS = (  # the UTF-32 mark begins with the UTF-16 one, and so is tried first
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")  # all but white space, escape and next line
_MAX_CONTROL_RATIO = 0.01
_MAX_DAMAGE_RATIO = 0.1  # of the characters beyond ASCII; more means that it never was UTF-8
_SAMPLE_BYTES = 256 * 1024
_CHAOS_MARGIN = 0.01
_NEEDS_A_MARK = ("utf_7", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le")


def decode_text(data: bytes) -> str:
    """Decode the bytes of a text file.

    UTF-8 with a few broken bytes stays UTF-8, with U+FFFD in their place: one bad byte must not turn a whole file into
    another alphabet.

    Raises:
        SkipSourceError: The bytes are no text, or no encoding is plausible.
    """
    encoding = marked_encoding(data)
    if encoding is not None:
        return data.decode(encoding, "replace")
    if b"\0" in data:
        raise SkipSourceError(_BINARY_REASON)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = _damaged_utf8(data) or _guessed(data)
    if len(_CONTROLS.findall(text)) > _MAX_CONTROL_RATIO * len(text):
        raise SkipSourceError(_BINARY_REASON)
    return text


def marked_encoding(data: bytes) -> str | None:
    """The encoding that a byte order mark at the beginning names, or None."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)


def _damaged_utf8(data: bytes) -> str | None:
    """The text, when nearly all that is not ASCII is valid UTF-8."""
    text = data.decode("utf-8", "replace")
    num_damaged = text.count("\ufffd")
    num_beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    return text if num_damaged <= _MAX_DAMAGE_RATIO * num_beyond_ascii else None


def _guessed(data: bytes) -> str:
    """Decode by charset-normalizer's best guess; Windows-1252 where it is as good, the commonest of the old ones."""
    from charset_normalizer import from_bytes

    matches = list(from_bytes(data[:_SAMPLE_BYTES], cp_exclusion=list(_NEEDS_A_MARK)))
    if not matches:
        raise SkipSourceError(_BINARY_REASON)
    best = matches[0]
    for match in matches:
        as_good = match.chaos <= best.chaos + _CHAOS_MARGIN and match.coherence >= best.coherence
        if as_good and "cp1252" in match.could_be_from_charset:
            return data.decode("cp1252", "replace")
    return data.decode(best.encoding, "replace")
