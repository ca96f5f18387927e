import os
from pathlib import Path

import pytest

from epic_rag.loading import PathPattern, SkippedSource, load_paths
from epic_rag.loading.pattern import is_there

FILES = ("a.md", "b.txt", "notes/c.md", "notes/deep/d.md", "notes/deep/e.rst", ".hidden/f.md", "notes/code.py")


@pytest.fixture
def docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(f"words of {name}")
    return tmp_path / "docs"


def found(pattern: str) -> list[str]:
    return [item.source.removeprefix("docs/") for item in load_paths([Path(pattern)])]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("docs/*.md", ["a.md"]),
        ("docs/**/*.md", ["a.md", "notes/c.md", "notes/deep/d.md"]),
        ("docs/[ab].*", ["a.md", "b.txt"]),
        ("docs/*/deep", ["notes/deep/d.md", "notes/deep/e.rst"]),
        ("docs/**/deep/*.md", ["notes/deep/d.md"]),
        ("d*/?.md", ["a.md"]),
        ("docs/.hidden/*.md", [".hidden/f.md"]),
    ],
)
@pytest.mark.usefixtures("docs")
def test_patterns_name_what_a_shell_would(pattern, names):
    assert found(pattern) == names


@pytest.mark.usefixtures("docs")
def test_absolute_patterns_and_files_named_like_one(tmp_path):
    assert found(str(tmp_path / "docs" / "*.txt")) == ["b.txt"]
    (tmp_path / "docs" / "x[1].md").write_text("a real file")
    assert found("docs/x[1].md") == ["x[1].md"]


@pytest.mark.usefixtures("docs")
def test_a_pattern_that_names_nothing_says_so():
    for pattern in ("docs/*.py", "nowhere/**/*.md"):
        (item,) = load_paths([Path(pattern)])
        assert isinstance(item, SkippedSource)
        assert "no such file" in item.reason


def test_folders_that_cannot_hold_a_match_are_not_listed(docs, monkeypatch):
    listed = []
    genuine = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(Path(folder).name) or genuine(folder))
    assert found("docs/*.md") == ["a.md"]
    assert listed == ["docs"]


def test_covers_also_what_is_gone(docs):
    pattern = PathPattern.of(docs / "**" / "*.md")
    assert pattern is not None
    assert pattern.covers(docs / "gone" / "g.md")
    assert not pattern.covers(docs / "gone" / "g.txt")
    assert not pattern.covers(docs.parent / "g.md")
    assert PathPattern.of(docs) is None


def test_a_name_that_cannot_be_is_not_there_and_one_that_may_not_be_seen_is(docs, monkeypatch):
    assert not is_there(docs / ("x" * 300))
    assert not is_there(docs / "a\0b")
    assert not is_there(docs / "a.md" / "below a file")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert is_there(docs / "locked")
    assert list(load_paths([Path("docs/locked/*.md")])) == [
        SkippedSource("docs/locked/*.md", "permission denied: give this user the right to read it")
    ]


def test_many_doublestars_are_one(docs):
    deep = docs.joinpath(*"abcdefghijklmnopqrstuvwxyz")
    deep.mkdir(parents=True)
    (deep / "far.txt").write_text("words")
    assert found("docs/" + "**/" * 20 + "f*.txt") == ["a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z/far.txt"]
    assert not PathPattern(docs, ("**", "*") * 20).covers(docs / "/".join("a" * 19))
