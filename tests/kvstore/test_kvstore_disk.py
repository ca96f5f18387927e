"""The disk tier passes the suite, and what only a disk can meet: a full one, and other threads and processes on it."""

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from epic_rag.kvstore import disk, folder
from epic_rag.kvstore import manifest as manifest_module
from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.conformance_budget import BudgetSuite, MakeBudgetedStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.kvstore.testing import chunk_blob, content

ROOT = Path(__file__).resolve().parents[2]


Books = Callable[[DiskStore], bool]
InNamespace = Callable[[str, str], subprocess.CompletedProcess[str]]


class TestDiskStore(BudgetSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeBudgetedStore:
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


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", chunk_blob("p", 7))
        store.put("b", b"xyz")
        usage = store.usage()
    with DiskStore(tmp_path) as store:
        assert list(store.names()) == ["a", "b"]
        assert content(store.get("b")) == b"xyz"
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


def test_two_stores_on_one_folder_share_the_books(tmp_path: Path, books_balance: Books) -> None:
    with DiskStore(tmp_path, 100) as one, DiskStore(tmp_path, 100) as two:
        one.put("a", bytes(60))
        two.put("b", bytes(60))
        assert one.get("a") is None
        assert list(one.names()) == ["b"]
        assert one.stats().bytes == two.stats().bytes == 60
        one.delete("b")
        assert two.get("b") is None
        assert books_balance(two)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, mend: str, allowed_bytes: int, books_balance: Books
) -> None:
    with DiskStore(tmp_path) as store:
        store.put("old", bytes(10))
        monkeypatch.setattr(folder, "_write_all", refuse_after(allowed_bytes, code))
        for name in ("new", "old"):
            with pytest.raises(StoreWriteError, match=mend) as caught:
                store.put(name, bytes(range(100)))
            assert str(tmp_path) in str(caught.value)
        monkeypatch.undo()
        assert content(store.get("old")) == bytes(10)
        assert store.get("new") is None
        assert list((tmp_path / "tmp").iterdir()) == []
        assert books_balance(store)
        store.put("new", b"fits now")
        assert content(store.get("new")) == b"fits now"


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


def test_a_disk_that_is_really_full(tmp_path: Path, in_namespace: InNamespace) -> None:
    done = in_namespace(f"mount -t tmpfs -o size=1m none {tmp_path}", f"ROOT = {str(tmp_path)!r}\n{FILL}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept")


def test_a_manifest_that_cannot_be_written_fails_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "TOUCHES_KEPT", 2)
    store = DiskStore(tmp_path)
    store.put("a", b"1")
    other = sqlite3.connect(tmp_path / "manifest.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for name in ("a", "b", "c", "a"):
        store.get(name)
    store.touch(["b", "c", "d"])
    assert content(store.get("a")) == b"1"
    assert store._touched, "the uses wait"
    other.execute("COMMIT")
    other.close()
    store.get("a")
    assert store._touched == {}
    store.close()


def test_files_can_be_removed_when_the_manifest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, books_balance: Books
) -> None:
    monkeypatch.setattr(manifest_module, "BUSY_SECONDS", 0.05)
    with DiskStore(tmp_path) as store:
        store.put("a", b"1")
        other = sqlite3.connect(tmp_path / "manifest.sqlite3", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert store.delete("a") is True
        assert content(store.get("a")) is None
        with pytest.raises(StoreWriteError, match="locked"):
            store.put("b", b"2")
        store.quarantine("b", "never was there")
        other.execute("ROLLBACK")
        other.close()
        store.put("b", b"2")
        assert books_balance(store)


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
