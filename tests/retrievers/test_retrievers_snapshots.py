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
    assert snapshots.revisions() == [9, 5]


def test_a_failed_write_leaves_the_old_ones(tmp_path):
    snapshots = SnapshotFolder(tmp_path, read_only=False)
    snapshots.keep(4, {"a": 1}, save("x"))

    def fail(folder):
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    snapshots.keep(4, {"a": 2}, fail)
    assert snapshots.manifest(4) == {"a": 1}
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
