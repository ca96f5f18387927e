import json

import pytest

from epic_rag.loading.document import LoadedDocument, SkippedSource, SkipSourceError
from epic_rag.loading.json_ import load_json, load_jsonl


def load(tmp_path, content, name="file.json"):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return list((load_jsonl if name.endswith("l") else load_json)(tmp_path / name, name))


@pytest.mark.parametrize("field", ["text", "content", "page_content"])
def test_an_object_with_a_text(tmp_path, field):
    (document,) = load(tmp_path, json.dumps({"title": "T", field: "words", "id": 3}))
    assert (document.source, document.title, document.text) == ("file.json", "T", "words")
    assert not document.has_lines


def test_a_list_of_objects_names_each_by_id_or_place(tmp_path):
    items = [
        {"id": "a", "text": "1"},
        {"text": "2"},
        {"_id": 7, "text": "3"},
        {"id": "a", "text": "4"},
        {"id": " x\ny ", "text": "5"},
    ]
    sources = [document.source for document in load(tmp_path, json.dumps(items))]
    assert sources == ["file.json#a", "file.json#2", "file.json#7", "file.json#a~4", "file.json#x y"]


def test_bad_items_of_a_list_are_named_and_the_others_load(tmp_path):
    items = [
        {"text": "good"},
        {"text": None},
        {"text": 5},
        {"text": {}},
        {"text": " "},
        "string",
        {"other": 1, "b": 2},
        {},
    ]
    good, *bad = load(tmp_path, json.dumps(items))
    assert good.text == "good"
    assert [(skipped.source, skipped.reason) for skipped in bad] == [
        ("file.json#2", "expected a string under 'text', got null"),
        ("file.json#3", "expected a string under 'text', got a number"),
        ("file.json#4", "expected a string under 'text', got an object"),
        ("file.json#5", "empty"),
        ("file.json#6", "expected an object with a text, got a string"),
        ("file.json#7", "expected a text under one of text, content, page_content; the object has b, other"),
        ("file.json#8", "expected a text under one of text, content, page_content; the object has nothing"),
    ]


@pytest.mark.parametrize("value", [["a", "b"], {"key": {"Grüße": [1, 2]}}, 5, "word", None])
def test_other_json_is_pretty_text(tmp_path, value):
    (document,) = load(tmp_path, json.dumps(value))
    assert document.text == json.dumps(value, ensure_ascii=False, indent=2)
    assert (document.source, document.title) == ("file.json", "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("{", "not JSON: Expecting property name"),
        ("[" * 100_000, "beyond what can be parsed|not JSON"),
        ("9" * 5000, "beyond what can be parsed"),
        (b"\x00\x01", "looks binary"),
    ],
)
def test_what_is_no_json_has_a_reason(tmp_path, content, reason):
    with pytest.raises(SkipSourceError, match=reason):
        load(tmp_path, content)


def test_escapes_of_half_characters_are_replaced(tmp_path):
    (document,) = load(tmp_path, r'{"text": "half \ud83d nul \u0000", "title": "\udc00"}')
    assert (document.text, document.title) == ("half \ufffd nul \ufffd", "\ufffd")


def test_lines_load_one_by_one_and_bad_ones_are_named(tmp_path):
    lines = [
        b"\xef\xbb\xbf" + b'{"id": "a", "text": "one", "title": "T"}\r',
        b"",
        b'{"text": "two"}',
        b"{broken",
        b'{"text": 1}',
        b"[1]",
        b'{"text": "caf\xe9"}',
        b'{"id": "a", "text": "six"}',
        b"\x00",
    ]
    found = load(tmp_path, b"\n".join([*lines[:-1], b'{"text": "last"}']), "file.jsonl")
    assert [item.source for item in found] == [f"file.jsonl#{n}" for n in ("a", 3, 4, 5, 6, 7, "a~8", 9)]
    texts = {item.source[11:]: item.text for item in found if isinstance(item, LoadedDocument)}
    assert texts == {"a": "one", "3": "two", "7": "café", "a~8": "six", "9": "last"}
    reasons = [item.reason for item in found if isinstance(item, SkippedSource)]
    assert reasons[0].startswith("line 4: not JSON")
    assert reasons[1:] == [
        "line 5: expected a string under 'text', got a number",
        "line 6: expected an object with a text, got a list",
    ]


def test_lines_in_utf_16(tmp_path):
    content = '{"text": "één"}\n{"text": "twee"}\n'.encode("utf-16")
    assert [document.text for document in load(tmp_path, content, "file.jsonl")] == ["één", "twee"]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "empty"), (b"\n \n", "empty"), (b"\x00\x01" * 9, "looks binary")]
)
def test_a_file_without_records_is_one_skip(tmp_path, content, reason):
    with pytest.raises(SkipSourceError, match=reason):
        load(tmp_path, content, "file.jsonl")


def test_records_are_streamed(tmp_path):
    (tmp_path / "file.jsonl").write_text('{"text": "one"}\n' + "broken\n" * 1000)
    assert next(load_jsonl(tmp_path / "file.jsonl", "f")).text == "one"
