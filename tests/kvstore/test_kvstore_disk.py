"""The disk tier passes the suite, and what only a disk can meet: damage, full and read-only disks, other processes."""

import errno
import json
import logging
import mmap
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from epic_rag.kvstore import disk, folder
from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.conformance import BlobStoreSuite, MakeStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreVersionError, StoreWriteError
from epic_rag.kvstore.testing import chunk_blob

ROOT = Path(__file__).resolve().parents[2]


class TestDiskStore(BlobStoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(budget_bytes: int | None = None, replacement: str = "lru") -> DiskStore:
            return DiskStore(tmp_path / "store", budget_bytes, replacement)

        return make

    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        assert isinstance(store, DiskStore)
        path = store._folder.path(name)
        return path.read_bytes() if path.exists() else None

    def raw_put(self, store: BlobStore, name: str, data: bytes) -> None:
        assert isinstance(store, DiskStore)
        path = store._folder.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def files_of(root: Path) -> dict[str, int]:
    """Name to size of every blob file, found without the store."""
    return {path.stem: path.stat().st_size for path in (root / "blobs").rglob("*.*") if path.is_file()}


def books_balance(store: DiskStore) -> bool:
    """Whether listing, count and bytes are exactly those of the files, and nothing is left unsettled."""
    files = files_of(store.path)
    with store._manifest.read() as rows:
        settled = rows.unsettled() == []
    stats = store.stats()
    return settled and sorted(files) == list(store.names()) and stats.bytes == sum(files.values())


def run_as_reader(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code on a read-only mount of `root`, in a mount namespace of its own; skip where that is not allowed."""
    script = f'mount --bind {root} {root} && mount -o remount,ro,bind {root} && exec {sys.executable} -c "$1"'
    return in_namespace(script, code)


def in_namespace(script: str, code: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    command = ["unshare", "-m", "sh", "-c", script, "sh", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_files_lie_where_the_format_says(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("abcdef", b"1")
        store.put("profile-00", b"2")
        store.put("x", b"3")
    assert (tmp_path / "blobs/ab/cd/abcdef.safetensors").read_bytes() == b"1"
    assert (tmp_path / "blobs/pr/of/profile-00.json").read_bytes() == b"2"
    assert (tmp_path / "blobs/x-/--/x.safetensors").read_bytes() == b"3"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_view_is_a_mapping_of_the_file(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"abc")
        view = store.get("a")
        assert view is not None
        assert isinstance(view.obj, mmap.mmap)


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", chunk_blob("p", 7))
        store.put("b", b"xyz")
        usage = store.usage()
    with DiskStore(tmp_path) as store:
        assert list(store.names()) == ["a", "b"]
        assert store.get("b") == b"xyz"
        assert store.usage() == usage
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "blobs",
        "lock",
        "manifest.sqlite3",
        "quarantine",
        "tmp",
    ]


def test_uses_are_remembered(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        for name in "abc":
            store.put(name, bytes(10))
    with DiskStore(tmp_path) as store:
        store.get("a")
    with DiskStore(tmp_path, budget_bytes=30) as store:
        store.put("d", bytes(10))
        assert list(store.names()) == ["a", "c", "d"]


def test_reads_do_not_write_until_enough_were_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "TOUCHES_KEPT", 3)
    with DiskStore(tmp_path) as store, DiskStore(tmp_path, budget_bytes=40) as other:
        for name in "abcd":
            store.put(name, bytes(10))
        for name in "aab":
            store.get(name)
        assert store._touched == {"a": 2, "b": 1}
        store.get("c")
        assert store._touched == {}
        other.put("e", bytes(10))
        assert list(other.names()) == ["a", "b", "c", "e"]


def test_another_replacement_policy_ranks_anew(tmp_path: Path) -> None:
    with DiskStore(tmp_path, replacement="lru") as store:
        for name, cost in (("a", 9.0), ("b", 1.0), ("c", 5.0)):
            store.put(name, chunk_blob("p", 1, cost))
        size_bytes = store.stats().bytes
    with DiskStore(tmp_path, budget_bytes=size_bytes, replacement="gdsf") as store:
        store.put("d", chunk_blob("p", 1, 3.0))
        assert list(store.names()) == ["a", "c", "d"]


def test_two_stores_on_one_folder_share_the_books(tmp_path: Path) -> None:
    with DiskStore(tmp_path, 100) as one, DiskStore(tmp_path, 100) as two:
        one.put("a", bytes(60))
        two.put("b", bytes(60))
        assert one.get("a") is None
        assert list(one.names()) == ["b"]
        assert one.stats().bytes == two.stats().bytes == 60
        one.delete("b")
        assert two.get("b") is None
        assert books_balance(two)


@pytest.mark.parametrize("damage", [b"", b"not a database" * 100, None], ids=["empty", "rubbish", "missing"])
def test_a_lost_manifest_is_rebuilt_from_the_files(tmp_path: Path, damage: bytes | None) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", chunk_blob("p", 7, 1.5))
        store.put("profile-0", b"xyz")
        usage = store.usage()
    manifest = tmp_path / "manifest.sqlite3"
    manifest.unlink() if damage is None else manifest.write_bytes(damage)
    (tmp_path / "blobs/stray.txt").write_text("not a blob")
    (tmp_path / "blobs/ab").mkdir(exist_ok=True)
    (tmp_path / "blobs/ab/stray.txt").write_text("not a blob")
    with DiskStore(tmp_path, 10_000, "gdsf") as store:
        assert store.usage() == usage
        assert list(store.names()) == ["a", "profile-0"]
        cost = store._manifest._connection().execute("SELECT cost_seconds, pinned FROM entry").fetchall()
        assert cost == [(1.5, 0), (0.0, 1)]


def test_a_manifest_damaged_within_is_rebuilt_at_the_next_open(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        for i in range(40):
            store.put(f"{i:064x}", b"x")
    manifest = tmp_path / "manifest.sqlite3"
    data = bytearray(manifest.read_bytes())
    data[100:4096] = bytes(4096 - 100)
    manifest.write_bytes(data)
    with DiskStore(tmp_path) as store:
        assert books_balance(store)
        assert store.stats().entries == 40
    assert (tmp_path / "quarantine/manifest.sqlite3").exists()


def test_a_newer_manifest_is_left_alone(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"1")
    db = sqlite3.connect(tmp_path / "manifest.sqlite3")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreVersionError, match="version 99"):
        DiskStore(tmp_path)


def test_files_come_and_go_behind_the_store(tmp_path: Path) -> None:
    with DiskStore(tmp_path / "one") as store:
        for name in ("aaaa1", "bbbb1", "cccc1"):
            store.put(name, b"12345")
    shutil.copytree(tmp_path / "one/blobs/aa", tmp_path / "two/blobs/aa")
    with DiskStore(tmp_path / "two") as store:
        assert list(store.names()) == ["aaaa1"]
        shutil.copytree(tmp_path / "one/blobs/bb", tmp_path / "two/blobs/bb")
        shutil.copytree(tmp_path / "one/blobs/cc", tmp_path / "two/blobs/cc")
        assert store.get("bbbb1") == b"12345"
        store.put("d", b"")
        assert list(store.names()) == ["aaaa1", "bbbb1", "d"], "what was read is adopted with the next put"
        shutil.rmtree(tmp_path / "two/blobs/aa")
        (tmp_path / "two/blobs/bb/bb/bbbb1.safetensors").write_bytes(b"123")
        assert store.get("aaaa1") is None
        store.reconcile()
        assert list(store.names()) == ["bbbb1", "cccc1", "d"]
        assert books_balance(store)


def test_quarantine_keeps_the_bytes_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "QUARANTINE_FILES", 3)
    with DiskStore(tmp_path) as store:
        for i in range(5):
            store.put(f"k{i}", bytes([i]))
            store.quarantine(f"k{i}", f"reason {i}")
            os.utime(tmp_path / f"quarantine/k{i}.safetensors", (i, i))
            os.utime(tmp_path / f"quarantine/k{i}.safetensors.reason.txt", (i, i))
        assert books_balance(store)
    kept = tmp_path / "quarantine"
    assert (kept / "k4.safetensors").read_bytes() == b"\4"
    assert (kept / "k4.safetensors.reason.txt").read_text() == "reason 4\n"
    assert len(list(kept.iterdir())) == 6, "only the newest are kept"


def test_orphaned_temporary_files_are_swept_when_old(tmp_path: Path) -> None:
    DiskStore(tmp_path).close()
    for name, mtime in (("old", 1.0), ("young", None), ("from-the-future", 4e9)):
        (tmp_path / "tmp" / name).touch()
        if mtime is not None:
            os.utime(tmp_path / "tmp" / name, (mtime, mtime))
    DiskStore(tmp_path).close()
    assert sorted(path.name for path in (tmp_path / "tmp").iterdir()) == ["from-the-future", "young"]


def refuse_after(allowed_bytes: int, code: int) -> Callable[[BinaryIO, Sequence[memoryview]], None]:
    """A disk that takes so many bytes and then fails."""

    def write(file: BinaryIO, buffers: Sequence[memoryview]) -> None:
        file.write(b"".join(buffers)[:allowed_bytes])
        raise OSError(code, os.strerror(code))

    return write


@pytest.mark.parametrize(
    ("code", "mend"), [(errno.ENOSPC, "free disk space"), (errno.EDQUOT, "quota"), (errno.EIO, "log")]
)
@pytest.mark.parametrize("allowed_bytes", [0, 50])
def test_a_full_disk_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, mend: str, allowed_bytes: int
) -> None:
    with DiskStore(tmp_path) as store:
        store.put("old", bytes(10))
        monkeypatch.setattr(folder, "_write_all", refuse_after(allowed_bytes, code))
        for name in ("new", "old"):
            with pytest.raises(StoreWriteError, match=mend) as caught:
                store.put(name, bytes(range(100)))
            assert str(tmp_path) in str(caught.value)
        monkeypatch.undo()
        assert store.get("old") == bytes(10)
        assert store.get("new") is None
        assert list((tmp_path / "tmp").iterdir()) == []
        assert books_balance(store)
        store.put("new", b"fits now")
        assert store.get("new") == b"fits now"


FILL = """
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreWriteError
store, refused = DiskStore(ROOT), 0
for i in range(60):
    try:
        store.put(f"k{i}", bytes([i]) * 30_000)
    except StoreWriteError as error:
        refused += 1
        assert "free" in str(error), error
kept = list(store.names())
assert 0 < len(kept) == 60 - refused < 60, (len(kept), refused)
assert all(bytes(store.get(name)) == bytes([int(name[1:])]) * 30_000 for name in kept)
assert store.stats().bytes == 30_000 * len(kept)
store.close()
store = DiskStore(ROOT)
assert list(store.names()) == kept
assert all(store.delete(name) for name in kept[:5])
store.put("again", b"x" * 30_000)
store.close()
print("kept", len(kept), "refused", refused)
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    done = in_namespace(
        f'mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c "$1"',
        f"ROOT = {str(tmp_path)!r}\n{FILL}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept")


READ_ONLY = """
import json
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreWriteError
with DiskStore(ROOT) as store:
    said = []
    for call in (lambda: store.put("b", b"2"), lambda: store.delete("a")):
        try:
            call()
        except StoreWriteError as error:
            said.append(str(error))
    for _ in range(300):
        store.get("a")
    store.quarantine("a", "damaged")
    store.reconcile()
    print(json.dumps([bytes(store.get("a")).decode(), list(store.names()), store.stats().bytes, said]))
"""


@pytest.mark.parametrize("manifest", ["closed", "open", "missing", "damaged"])
def test_a_read_only_folder_opens_and_reads(tmp_path: Path, manifest: str) -> None:
    store = DiskStore(tmp_path)
    store.put("a", b"1")
    if manifest != "open":
        store.close()
    if manifest == "missing":
        (tmp_path / "manifest.sqlite3").unlink()
    if manifest == "damaged":
        (tmp_path / "manifest.sqlite3").write_bytes(b"rubbish" * 1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix != ".sqlite3-shm"}
    done = run_as_reader(tmp_path, f"ROOT = {str(tmp_path)!r}\n{READ_ONLY}")
    store.close()
    assert done.returncode == 0, done.stderr
    value, names, size_bytes, said = json.loads(done.stdout)
    assert (value, names, size_bytes) == ("1", ["a"], 1)
    assert len(said) == 2
    assert all(str(tmp_path) in message and "make it writable" in message for message in said)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix != ".sqlite3-shm"}
    assert before.keys() >= after.keys()


def test_a_folder_that_cannot_be_written_by_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"1")
    monkeypatch.setattr(folder.os, "access", lambda path, mode: False)
    with DiskStore(tmp_path) as store:
        assert store.get("a") == b"1"
        assert list(store.names()) == ["a"]
        with pytest.raises(StoreWriteError, match="make it writable"):
            store.put("b", b"2")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreWriteError, match="in the way"):
        DiskStore(tmp_path / "file")
    with pytest.raises(StoreWriteError, match="in the way"):
        DiskStore(tmp_path / "file/below")


def test_a_manifest_that_cannot_be_written_fails_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "TOUCHES_KEPT", 2)
    store = DiskStore(tmp_path)
    store.put("a", b"1")
    other = sqlite3.connect(tmp_path / "manifest.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for name in ("a", "b", "c", "a"):
        store.get(name)
    store.touch(["b", "c", "d"])
    assert store.get("a") == b"1"
    assert store._touched, "the uses wait"
    other.execute("COMMIT")
    other.close()
    store.get("a")
    assert store._touched == {}
    store.close()


def test_a_blob_that_cannot_be_opened_is_reported_and_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DiskStore(tmp_path) as store:
        store._folder.path("abcd").mkdir(parents=True)
        with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
            assert store.get("abcd") is None
        assert "abcd" in caplog.text


def test_a_forked_child_opens_its_own_manifest(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from epic_rag.kvstore.disk import DiskStore\n"
        f"store = DiskStore({str(tmp_path)!r})\n"
        "store.put('a', b'1')\n"
        "if os.fork() == 0:\n"
        "    store.put('b', b'2')\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "store.put('c', b'3')\n"
        "print(*store.names())\n"
        "store.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["a", "b", "c"]


def test_the_clock_may_run_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskStore(tmp_path, 30) as store:
        for turn, name in enumerate("abc"):
            monkeypatch.setattr(folder.time, "time", lambda turn=turn: 1e9 - 1e6 * turn)
            store.put(name, bytes(10))
        store.get("a")
        store.put("d", bytes(10))
        assert list(store.names()) == ["a", "c", "d"]
