import os
from pathlib import Path

import pytest

from epic_rag.retrievers.snapshots import SnapshotFolder


def save(text):
    return lambda folder: (folder / "data").write_text(text) and None


def test_a_snapshot_comes_back_with_its_manifest(tmp_path):
    snapshots = SnapshotFolder(tmp_path / "new", read_only=False)
    assert (snapshots.is_kept, snapshots.revisions(), snapshots.manifest(3)) == (True, [], None)
    snapshots.keep(3, {"a": 1}, save("three"))
    assert snapshots.manifest(3) == {"a": 1}
    assert (snapshots.path(3) / "data").read_text() == "three"
    snapshots.keep(3, {"a": 2}, save("again"))
    assert snapshots.manifest(3) == {"a": 2}
    assert (snapshots.path(3) / "data").read_text() == "again"


def test_older_ones_go_and_newer_ones_stay(tmp_path):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    for revision in (2, 9, 5):
        snapshots.keep(revision, {}, save("x"))
    assert sorted(snapshots.revisions()) == [5, 9]


def test_the_one_written_last_comes_first(tmp_path):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    for revision, seconds in ((9, 100), (5, 300), (4, 200)):
        snapshots.keep(9, {}, save("x"))
        (tmp_path / "9").rename(tmp_path / f"new {revision}")
        os.utime(tmp_path / f"new {revision}" / "manifest.json", (seconds, seconds))
    for revision in (4, 5, 9):
        (tmp_path / f"new {revision}").rename(tmp_path / str(revision))
    (tmp_path / "7").mkdir()
    assert snapshots.revisions() == [5, 4, 9, 7]


@pytest.mark.parametrize("revision", [4, 5])
def test_a_failed_write_leaves_the_old_ones(tmp_path, revision):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    snapshots.keep(4, {"a": 1}, save("x"))

    def fail(folder):
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    snapshots.keep(revision, {"a": 2}, fail)
    assert snapshots.manifest(4) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


@pytest.mark.parametrize(("is_taken", "kept"), [(False, {"a": 1}), (True, {"other": 1})])
def test_a_name_that_cannot_be_taken_over_costs_neither_snapshot_nor_disk(tmp_path, monkeypatch, is_taken, kept):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    snapshots.keep(4, {"a": 1}, save("x"))
    real, tries = Path.rename, []

    def rename(path, target):
        if target == tmp_path / "4" and (path / "data").read_text() == "new":
            tries.append(path)
            if is_taken and len(tries) == 2:  # by another process, between the two renames
                target.mkdir()
                (target / "manifest.json").write_text('{"other": 1}')
            raise OSError(39, "Directory not empty")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    snapshots.keep(4, {"a": 2}, save("new"))
    assert len(tries) == 2
    assert snapshots.manifest(4) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


@pytest.mark.parametrize("folder", [None, "there"])
def test_nothing_is_written_where_nothing_may_be(tmp_path, folder):
    snapshots = SnapshotFolder(folder and tmp_path / folder, read_only=True)
    snapshots.keep(1, {}, save("x"))
    assert not snapshots.is_kept
    assert (snapshots.revisions(), snapshots.manifest(1), list(tmp_path.iterdir())) == ([], None, [])


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_manifest_that_is_none(tmp_path, text):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    snapshots.keep(1, {}, save("x"))
    (tmp_path / "1" / "manifest.json").write_bytes(text.encode("latin-1"))
    assert snapshots.manifest(1) is None
