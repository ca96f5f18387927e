"""Opening a disk store: lost and damaged manifests, files that come and go, folders that cannot be written."""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from epic_rag.kvstore.blobstore import BlobNote
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreVersionError, StoreWriteError
from epic_rag.kvstore.testing import chunk_blob, content

Books = Callable[[DiskStore], bool]
InNamespace = Callable[[str, str], subprocess.CompletedProcess[str]]


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
    for stray in ("stray.txt", "c", "cd/abcd.tmp.safetensors", "cd/abcd.json", "ce/abcd.safetensors"):
        (tmp_path / "blobs/ab" / stray).parent.mkdir(exist_ok=True)
        (tmp_path / "blobs/ab" / stray).write_text("not a blob")
    with DiskStore(tmp_path, 10_000, "gdsf") as store:
        assert store.usage() == usage
        assert list(store.names()) == ["a", "profile-0"]
        cost = store._manifest._connection().execute("SELECT cost_seconds, pinned FROM entry").fetchall()
        assert cost == [(1.5, 0), (0.0, 1)]


def test_a_manifest_damaged_within_is_rebuilt_at_the_next_open(tmp_path: Path, books_balance: Books) -> None:
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


def test_files_come_and_go_behind_the_store(tmp_path: Path, books_balance: Books) -> None:
    with DiskStore(tmp_path / "one") as store:
        for name in ("aaaa1", "bbbb1", "cccc1"):
            store.put(name, b"12345")
    shutil.copytree(tmp_path / "one/blobs/aa", tmp_path / "two/blobs/aa")
    with DiskStore(tmp_path / "two") as store:
        assert list(store.names()) == ["aaaa1"]
        shutil.copytree(tmp_path / "one/blobs/bb", tmp_path / "two/blobs/bb")
        shutil.copytree(tmp_path / "one/blobs/cc", tmp_path / "two/blobs/cc")
        assert content(store.get("bbbb1")) == b"12345"
        store.put("d", b"")
        assert list(store.names()) == ["aaaa1", "bbbb1", "d"], "what was read is adopted with the next put"
        shutil.rmtree(tmp_path / "two/blobs/aa")
        (tmp_path / "two/blobs/bb/bb/bbbb1.safetensors").write_bytes(b"123")
        assert store.get("aaaa1") is None
        store.reconcile()
        assert list(store.names()) == ["bbbb1", "cccc1", "d"]
        assert books_balance(store)


@pytest.mark.parametrize("manifest", ["closed", "open", "missing", "damaged"])
def test_a_read_only_folder_opens_and_reads(tmp_path: Path, manifest: str, in_namespace: InNamespace) -> None:
    store = DiskStore(tmp_path)
    store.put("a", b"1")
    if manifest != "open":
        store.close()
    if manifest == "missing":
        (tmp_path / "manifest.sqlite3").unlink()
    if manifest == "damaged":
        (tmp_path / "manifest.sqlite3").write_bytes(b"rubbish" * 1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix != ".sqlite3-shm"}
    remount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    done = in_namespace(remount, f"ROOT = {str(tmp_path)!r}\n{READ_ONLY}")
    store.close()
    assert done.returncode == 0, done.stderr
    value, names, size_bytes, said = json.loads(done.stdout)
    assert (value, names, size_bytes) == ("1", ["a"], 1)
    assert len(said) == 2
    assert all(str(tmp_path) in message and "make it writable" in message for message in said)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix != ".sqlite3-shm"}
    assert before.keys() >= after.keys()


@pytest.mark.parametrize("manifest", ["closed", "missing", "unsettled"])
def test_a_folder_that_cannot_be_written_by_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str
) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"1")
        if manifest == "unsettled":
            with store._manifest.transaction() as rows:
                rows.reserve("a", 5, BlobNote())
                rows.reserve("b", 5, BlobNote())
    if manifest == "missing":
        (tmp_path / "manifest.sqlite3").unlink()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with DiskStore(tmp_path) as store:
        assert content(store.get("a")) == b"1"
        assert list(store.names()) == ["a"]
        assert store.stats().bytes == 1
        with pytest.raises(StoreWriteError, match="make it writable"):
            store.put("b", b"2")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreWriteError, match="in the way"):
        DiskStore(tmp_path / "file")
    with pytest.raises(StoreWriteError, match="in the way"):
        DiskStore(tmp_path / "file/below")


def test_a_store_that_opened_for_reading_writes_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, books_balance: Books
) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"1")
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: False)
        store = DiskStore(tmp_path)
    store.put("b", b"2")
    assert list(store.names()) == ["a", "b"]
    assert books_balance(store)
    store.close()
