import inspect
import os
import sys
from pathlib import Path

import pytest

from epic_rag.loading.document import SkippedSource
from epic_rag.loading.walk import Walk, reason_for, source_name

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and file names differ on Windows")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder, made the current one, with files by name."""
    monkeypatch.chdir(tmp_path)

    def make(*names: str) -> Path:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return tmp_path

    return make


def names(paths, patterns=()):
    walk = Walk(patterns)
    return [source_name(found) if isinstance(found, Path) else found for found in walk.files(paths)], walk.num_ignored


def test_order_is_by_name_with_folders_in_their_place(tree):
    tree("b.md", "a/z.txt", "a/b/c.rst", "a.md", "c/d.TXT", "B.md")
    found, ignored = names([Path()])
    assert found == ["B.md", "a/b/c.rst", "a/z.txt", "a.md", "b.md", "c/d.TXT"]
    assert ignored == 0


def test_hidden_and_unknown_are_ignored_and_counted(tree):
    tree("a.md", ".hidden.md", ".git/config.md", "code.py", "no_suffix", "b/.x", "b/c.exe")
    assert names([Path()]) == (["a.md"], 6)


def test_what_is_named_is_read_even_when_hidden(tree):
    tree(".hidden.md", ".dir/a.md", ".dir/.b.md")
    assert names([Path(".hidden.md"), Path(".dir")]) == ([".hidden.md", ".dir/a.md"], 1)


def test_an_unknown_suffix_that_is_named_is_skipped_with_those_known(tree):
    tree("code.py", "plain")
    known = "known are .txt .md .markdown .rst .html .htm .json .jsonl .pdf .docx .pptx"
    assert names([Path("code.py"), Path("plain")])[0] == [
        SkippedSource("code.py", f"unknown suffix .py; {known}"),
        SkippedSource("plain", f"no suffix; {known}"),
    ]


def test_patterns_choose_among_files_of_folders(tree):
    tree("a.md", "b.txt", "c/d.md", "c/e.rst")
    assert names([Path()], ["*.md", "e.*"]) == (["a.md", "c/d.md", "c/e.rst"], 1)
    assert names([Path("b.txt")], ["*.md"]) == (["b.txt"], 0)


def test_links_in_circles_end(tree):
    root = tree("a/b/c.md", "a/d.md")
    (root / "a" / "b" / "up").symlink_to("..")
    (root / "a" / "self").symlink_to(".")
    (root / "twin").symlink_to("a")
    assert names([Path()]) == (["a/b/c.md", "a/d.md"], 0)


def test_dead_and_circular_links_are_left_to_the_reader(tree):
    root = tree()
    (root / "dead.md").symlink_to("nowhere")
    (root / "loop.md").symlink_to("loop.md")
    (root / "dead").symlink_to("nowhere")
    assert names([Path()]) == (["dead.md", "loop.md"], 1)


def test_what_is_not_there_is_named(tree):
    tree("file.md")
    found, _ = names([Path("missing"), Path("missing.md"), Path("file.md/x"), Path("nul\0")])
    assert [(item.source, item.reason.split(":")[0]) for item in found] == [
        ("missing", "no such file or folder"),
        ("missing.md", "no such file or folder"),
        ("file.md/x", "cannot be read"),
        ("nul\ufffd", "not a path"),
    ]


def test_pipes_are_never_opened(tree):
    os.mkfifo(tree() / "pipe.md")
    expected = [SkippedSource("pipe.md", "not a regular file")]
    assert names([Path()])[0] == expected
    assert names([Path("pipe.md")])[0] == expected


def test_a_folder_that_may_not_be_listed_is_named(tree, monkeypatch):
    tree("a/x.md", "b.md")
    genuine = os.listdir

    def refuse(folder):
        if Path(folder).name == "a":
            raise PermissionError(13, "Permission denied")
        return genuine(folder)

    monkeypatch.setattr(os, "listdir", refuse)
    assert names([Path()])[0] == [SkippedSource("a", "permission denied: give this user the right to read it"), "b.md"]


def test_deep_folders_need_no_stack(tree):
    tree("/".join(["d"] * 300) + "/a.md")
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        found, _ = names([Path()])
    finally:
        sys.setrecursionlimit(depth)
    assert found == ["d/" * 300 + "a.md"]


def test_sources_are_posix_and_relative_beneath_the_current_folder(tree):
    root = tree("a/b.md")
    assert (
        source_name(root / "a" / "b.md") == source_name(Path("a/b.md")) == source_name(Path("./a/./b.md")) == "a/b.md"
    )
    assert source_name(root.parent / "other.md") == (root.parent / "other.md").as_posix()
    assert source_name(Path("../x.md")) == "../x.md"


def test_file_names_that_are_not_utf_8_can_be_stored(tree):
    root = tree()
    (root / os.fsdecode(b"caf\xe9.md")).write_text("x")
    (root / "日本.md").write_text("x")
    found, _ = names([Path()])
    assert sorted(found) == ["caf\\xe9.md", "日本.md"]


def test_reasons_are_in_words():
    assert reason_for(FileNotFoundError()) == "no such file or folder"
    assert reason_for(OSError(5, "Input/output error")) == "cannot be read: Input/output error"
    assert reason_for(OSError("strange")) == "cannot be read: strange"


def test_a_folder_named_twice_gives_its_files_to_both(tree):
    tree("docs/a.md", "docs/b.rst", "docs/c.txt")
    found, _ = names([Path("docs/*.md"), Path("docs/*.rst"), Path("docs")])
    assert found == ["docs/a.md", "docs/b.rst", "docs/a.md", "docs/b.rst", "docs/c.txt"]
