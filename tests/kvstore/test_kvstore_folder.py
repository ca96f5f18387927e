"""The files of a disk store."""

import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from epic_rag.kvstore import folder
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.testing import content

Books = Callable[[DiskStore], bool]
InNamespace = Callable[[str, str], subprocess.CompletedProcess[str]]


def test_files_lie_where_the_format_says(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("abcdef", b"1")
        store.put("profile-00", b"2")
        store.put("x", b"3")
    assert (tmp_path / "blobs/ab/cd/abcdef.safetensors").read_bytes() == b"1"
    assert (tmp_path / "blobs/pr/of/profile-00.json").read_bytes() == b"2"
    assert (tmp_path / "blobs/x-/--/x.safetensors").read_bytes() == b"3"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux to count file descriptors")
def test_views_hold_no_file_descriptors(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"abc")
        before = len(list(Path("/proc/self/fd").iterdir()))
        views = [store.get("a") for _ in range(50)]
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert set(map(content, views)) == {b"abc"}


def test_quarantine_keeps_the_bytes_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, books_balance: Books
) -> None:
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


def test_a_blob_that_cannot_be_opened_is_reported_and_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DiskStore(tmp_path) as store:
        store._folder.path("abcd").mkdir(parents=True)
        with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
            assert store.get("abcd") is None
        assert "abcd" in caplog.text


def test_the_clock_may_run_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskStore(tmp_path, 30) as store:
        for turn, name in enumerate("abc"):
            monkeypatch.setattr("time.time", lambda turn=turn: 1e9 - 1e6 * turn)
            store.put(name, bytes(10))
        store.get("a")
        store.put("d", bytes(10))
        assert list(store.names()) == ["a", "c", "d"]
