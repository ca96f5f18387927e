import io
import sys
from pathlib import Path

import pytest

from epic_rag.loading import READERS, LoadedDocument, SkippedSource, SourceFile, load_paths


def standard_input(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def test_standard_input_is_read_as_json_lines(monkeypatch):
    standard_input(monkeypatch, b'\xef\xbb\xbf{"id": "a", "text": "one", "title": "T"}\n\n{"text": "two"}\nnot json\n')
    first, second, bad = load_paths([Path("-"), Path("-")])
    assert isinstance(first, LoadedDocument)
    assert isinstance(second, LoadedDocument)
    assert [(first.source, first.title, first.text), (second.source, second.text)] == [
        ("-#a", "T", "one"),
        (second.source, "two"),
    ]
    standard_input(monkeypatch, b'{"text": "three"}\n{"text": "two"}\n{"text": "two"}\n')
    third, again, twice = load_paths([Path("-")])
    assert second.source == again.source == twice.source != third.source  # named by the text, not by the line
    assert isinstance(bad, SkippedSource)
    assert "line 4: not JSON" in bad.reason


@pytest.mark.parametrize(("data", "reason"), [(b"", "empty"), (b"\0\1\2" * 99, "looks binary")])
def test_standard_input_without_text_is_named(monkeypatch, data, reason):
    standard_input(monkeypatch, data)
    (item,) = load_paths([Path("-")])
    assert isinstance(item, SkippedSource)
    assert item.source == "-"
    assert item.reason.startswith(reason)


def test_what_was_skipped_before_stays_so(tmp_path):
    file = SourceFile(tmp_path / "a.pdf", "a.pdf", "no right to read it")
    assert not file.is_slow()
    assert list(file.read()) == [SkippedSource("a.pdf", "no right to read it")]
    assert SourceFile(tmp_path / "a.PDF", "a.PDF").is_slow()


def test_a_file_that_trips_its_reader_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    def stumble(path, source):
        raise RecursionError("too deep")
        yield

    readers = {".md": stumble, ".txt": READERS[".txt"]}
    monkeypatch.setattr("epic_rag.loading.source_file.reader_for", lambda path: readers[path.suffix])
    (tmp_path / "a.md").write_text("words")
    (tmp_path / "b.txt").write_text("words")
    bad, good = load_paths([tmp_path])
    assert bad == SkippedSource(str(tmp_path / "a.md"), "cannot be read: RecursionError: too deep")
    assert isinstance(good, LoadedDocument)


def test_standard_input_that_is_closed_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert list(load_paths([Path("-")])) == [SkippedSource("-", "standard input is closed")]
