"""JSON and JSON Lines: objects with a text become one document each, any other JSON is read as pretty text.

A record's text stands under `text`, `content` or `page_content`, its title under `title`, its name under `id` or `_id`;
it is cited as `file.jsonl#name`, or with its line or place in the list when it has no name. Lines on standard input say
nothing from one time to the next, so a record without a name is there named by its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from epic_rag.loading.decode import decode_text, marked_encoding
from epic_rag.loading.document import EMPTY, LoadedDocument, SkippedSource, SkipSourceError, clean_text, make_document

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_TEXT_FIELDS = ("text", "content", "page_content")
_ID_FIELDS = ("id", "_id")
_PROBE_BYTES = 8192
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
}


def load_json(path: Path, source: str) -> Iterator[LoadedDocument | SkippedSource]:
    """Read one JSON value: an object with a text, a list with such objects, or anything else as pretty text.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary, empty or no JSON.
    """
    text = clean_text(decode_text(path.read_bytes()))
    if not text.strip():
        raise SkipSourceError(EMPTY)
    value = _parse(text)
    if isinstance(value, list) and any(_has_text(item) for item in value):
        names = _Names(source)
        for place, item in enumerate(value, 1):
            yield _record(names.name(item, place), item)
    elif _has_text(value):
        yield _record(source, value)
    else:
        pretty = json.dumps(value, ensure_ascii=False, indent=2)
        yield make_document(source, "", clean_text(pretty), has_lines=False)


def load_jsonl(path: Path, source: str) -> Iterator[LoadedDocument | SkippedSource]:
    """Read one object a line, as a stream; a bad line is one `SkippedSource`, blank lines are nothing.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is binary or empty.
    """
    with path.open("rb") as file:
        yield from load_jsonl_stream(file, source)


def load_jsonl_stream(
    stream: BufferedReader, source: str, *, is_pipe: bool = False
) -> Iterator[LoadedDocument | SkippedSource]:
    """Read one object a line from an open file or pipe; in a pipe, records without a name are named by their text.

    Raises:
        OSError: It cannot be read.
        SkipSourceError: It is binary or empty.
    """
    names = _Names(source, by_text=is_pipe)
    num_records = 0
    for number, line in enumerate(_lines(stream), 1):
        if not line.strip():
            continue
        num_records += 1
        try:
            value = _parse(decode_text(line) if isinstance(line, bytes) else line)
        except SkipSourceError as error:
            yield SkippedSource(f"{source}#{number}", f"line {number}: {error}")
        else:
            yield _record(names.name(value, number), value, f"line {number}: ")
    if not num_records:
        raise SkipSourceError(EMPTY)


def _lines(stream: BufferedReader) -> Iterator[bytes | str]:
    head = stream.peek(_PROBE_BYTES)[:_PROBE_BYTES]
    if (marked_encoding(head) or "utf-8-sig") == "utf-8-sig":
        if b"\0" in head:
            decode_text(head)  # raises: such a file is binary, and reported once instead of line by line
        yield from stream
    else:
        yield from decode_text(stream.read()).split("\n")


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise SkipSourceError(f"not JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SkipSourceError(f"JSON beyond what can be parsed: {error}") from error
    return value


def _has_text(value: Json) -> bool:
    return isinstance(value, dict) and any(field in value for field in _TEXT_FIELDS)


def _record(source: str, value: Json, where: str = "") -> LoadedDocument | SkippedSource:
    """One object as a document, or the reason why it is none."""
    try:
        title = value.get("title") if isinstance(value, dict) else ""
        text = clean_text(_text_of(value))
        return make_document(source, title if isinstance(title, str) else "", text, has_lines=False)
    except SkipSourceError as error:
        return SkippedSource(source, f"{where}{error}")


def _text_of(value: Json) -> str:
    if not isinstance(value, dict):
        raise SkipSourceError(f"expected an object with a text, got {_KINDS[type(value)]}")
    for field in _TEXT_FIELDS:
        if field in value:
            text = value[field]
            if isinstance(text, str):
                return text
            raise SkipSourceError(f"expected a string under {field!r}, got {_KINDS.get(type(text), 'an object')}")
    fields = ", ".join(sorted(value)[:8]) or "nothing"
    raise SkipSourceError(f"expected a text under one of {', '.join(_TEXT_FIELDS)}; the object has {fields}")


def _digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class _Names:
    """Names for the records of one file, each given once."""

    def __init__(self, source: str, *, by_text: bool = False) -> None:
        self._source = source
        self._by_text = by_text
        self._given: set[str] = set()

    def name(self, value: Json, number: int) -> str:
        """`file#id`, with the number for a record without one; a repeated id gets the number behind it."""
        own = ""
        if isinstance(value, dict):
            found = next((value[field] for field in _ID_FIELDS if isinstance(value.get(field), str | int)), "")
            own = " ".join(clean_text(str(found)).split())
        if self._by_text and not own:
            return f"{self._source}#{_digest(value)}"
        name = own or str(number)
        while name in self._given:
            name = f"{name}~{number}"
        self._given.add(name)
        return f"{self._source}#{name}"
