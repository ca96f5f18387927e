import io
import sys
from pathlib import Path

import pytest

from epic_rag.loading import LoadedDocument, SkippedSource, SourceFile, load_paths


def standard_input(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def test_standard_input_is_read_as_json_lines(monkeypatch):
    standard_input(monkeypatch, b'\xef\xbb\xbf{"id": "a", "text": "one", "title": "T"}\n\n{"text": "two"}\nnot json\n')
    first, second, bad = load_paths([Path("-"), Path("-")])
    assert isinstance(first, LoadedDocument)
    assert isinstance(second, LoadedDocument)
    assert [(first.source, first.title, first.text), (second.source, second.text)] == [
        ("-#a", "T", "one"),
        ("-#3", "two"),
    ]
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
