import os
import subprocess
import sys
from pathlib import Path

import pytest

from epic_rag.loading import LoadedDocument, SkippedSource, load_paths, source_file
from epic_rag.loading.registry import READERS

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("EPIC_RAG_TEST_DATA", ROOT / ".." / "shared" / "data"))

_MARKDOWN = {"# Title\ntext": "Title", "text": ""}
_HTML = {"<title>Title</title>text": "Title", "<h1>Title</h1>text": "Title", "<p>text": ""}
_RECORD = {'{"text": "words", "title": "Title"}': "Title", '{"text": "words"}': ""}
TITLES = {  # suffix to contents of files, each with its title
    ".txt": {"text": ""},
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".rst": {"Title\n=====\ntext": "Title", "text": ""},
    ".html": _HTML,
    ".htm": _HTML,
    ".json": {**_RECORD, '["words"]': ""},
    ".jsonl": _RECORD,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "a.txt": "plain",
        "b.md": "# Title\ntext",
        "c.rst": "Title\n=====\ntext",
        "d.html": "<h1>Title</h1>",
        "e.json": '{"text": "record"}',
        "f.jsonl": '{"text": "one"}\n{bad\n{"text": "two", "id": "x"}\n',
        "g.txt": " \n",
        "h.txt": "nul\0",
        "i.py": "code",
        "j.pdf": "no pdf",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_format_is_read_and_every_failure_named(folder):
    loader = load_paths([folder])
    found = list(loader)
    assert [item.source for item in found if isinstance(item, LoadedDocument)] == [
        "a.txt", "b.md", "c.rst", "d.html", "e.json", "f.jsonl#1", "f.jsonl#x",
    ]  # fmt: skip
    skipped = {item.source: item.reason for item in found if isinstance(item, SkippedSource)}
    assert set(skipped) == {"f.jsonl#2", "g.txt", "h.txt", "j.pdf"}
    assert skipped["g.txt"] == "empty"
    assert skipped["h.txt"].startswith("looks binary")
    assert skipped["j.pdf"].startswith("broken PDF")
    assert loader.num_ignored == 1


def test_a_file_named_twice_is_read_once(folder):
    sources = [item.source for item in load_paths([Path("b.md"), folder / "b.md", Path("./b.md")])]
    assert sources == ["b.md"]
    assert [item.source for item in load_paths([Path("b.md"), folder], patterns=["*.md", "*.rst"])] == ["b.md", "c.rst"]


@pytest.mark.parametrize("suffix", sorted(set(READERS) - {".pdf", ".docx", ".pptx"}))
def test_a_renamed_file_keeps_its_title_and_digest(tmp_path, suffix):
    """The model reads the title, so that another one means to encode the document again."""
    for text, title in TITLES[suffix].items():
        file = tmp_path / f"one{suffix}"
        file.write_text(text)
        (before,) = load_paths([file])
        (after,) = load_paths([file.rename(tmp_path / f"another name{suffix}")])
        assert before.source != after.source
        assert before.title == after.title == title
        assert before.digest == after.digest


def test_a_file_that_vanishes_or_may_not_be_read_is_named(folder, monkeypatch):
    def vanish(path, source):
        path.unlink()
        yield from READERS[".txt"](path, source)

    def refuse(path, source):
        raise PermissionError(13, "Permission denied")
        yield

    monkeypatch.setattr(source_file, "reader_for", lambda path: vanish if path.suffix == ".txt" else refuse)
    found = list(load_paths([Path("a.txt"), Path("b.md"), Path("nowhere.md")]))
    assert [(item.source, item.reason) for item in found] == [
        ("a.txt", "no such file or folder"),
        ("b.md", "permission denied: give this user the right to read it"),
        ("nowhere.md", "no such file or folder"),
    ]


def test_nothing_is_read_before_it_is_asked_for(folder):
    loader = load_paths([folder])
    for path in folder.glob("[b-z]*"):
        path.unlink()
    assert next(loader).source == "a.txt"
    assert {item.source: item.reason for item in loader} == {}


def test_no_paths_give_nothing():
    assert list(load_paths([])) == []


def test_importing_loads_no_parser():
    code = (
        "import sys, epic_rag.loading; from pathlib import Path; list(epic_rag.loading.load_paths([Path('nowhere')]));"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'bs4', 'pypdf', 'charset_normalizer', 'torch'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "docs").is_dir(), reason="no evaluation data: set EPIC_RAG_TEST_DATA to its folder")
def test_two_documentation_trees_load_whole():
    loader = load_paths([DATA / "docs"])
    found = list(loader)
    assert [item for item in found if isinstance(item, SkippedSource)] == []
    assert (len(found), loader.num_ignored) == (760, 91)
    assert all(item.digest and item.text.strip() for item in found)
    assert [Path(item.source).name for item in found if not item.title] == ["translation-banner.md"]  # has no heading
    for item in found:
        starts = [section.start_char for section in item.sections]
        assert starts == sorted(set(starts))
    assert sum(bool(item.sections) for item in found) > 700
