"""The manifest's transactions, and how it fails."""

import sqlite3
from pathlib import Path

import pytest

from epic_rag.kvstore.blobstore import BlobNote, Usage
from epic_rag.kvstore.errors import StoreClosedError, StoreFormatError, StoreWriteError
from epic_rag.kvstore.manifest import Manifest
from epic_rag.kvstore.manifest_rows import CONDEMNED, WRITING
from epic_rag.kvstore.testing import in_threads

NOTE = BlobNote("p", 3, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "manifest ?#%.sqlite3"


def made(path: Path | None) -> Manifest:
    manifest = Manifest(path, "lru")
    assert not manifest.exists()
    with manifest.transaction() as rows:
        rows.create()
    assert manifest.exists()
    return manifest


def test_what_fails_within_a_transaction_changes_nothing(path: Path) -> None:
    manifest = made(path)
    with pytest.raises(TypeError), manifest.transaction() as rows:
        rows.settle("a", 10, NOTE) or rows.settle()  # type: ignore[func-returns-value, call-arg]
    with manifest.transaction(durable=True) as rows:
        rows.settle("b", 10, NOTE)
    with manifest.read() as rows:
        assert rows.sizes() == {"b": 10}
        assert rows.usage() == {"p": Usage(1, 10, 3)}
    manifest.close()


def test_only_what_is_live_counts_and_the_rest_is_unsettled(path: Path) -> None:
    manifest = made(path)
    with manifest.transaction() as rows:
        for name in "abc":
            rows.settle(name, 10, NOTE)
        rows.condemn("a")
        rows.reserve("b", 25, BlobNote("q", 9))
        assert rows.usage() == {"p": Usage(1, 10, 3)}
        assert rows.unsettled() == [("b", WRITING), ("a", CONDEMNED)]
        assert (rows.state("a"), rows.state("x")) == (CONDEMNED, None)
        assert rows.names("") == ["c"]
        rows.settle("b", 20, BlobNote("q", 9))
        rows.settle("a", 5, NOTE)
        assert rows.usage() == {"p": Usage(2, 15, 6), "q": Usage(1, 20, 9)}
        for name in "abc":
            rows.remove(name)
        assert rows.usage() == {}
    manifest.close()


def test_what_is_being_written_takes_room(path: Path) -> None:
    manifest = made(path)
    with manifest.transaction() as rows:
        rows.settle("profile-x", 10, NOTE)
        rows.settle("a", 10, NOTE)
        rows.settle("b", 10, NOTE)
        assert rows.make_room(30) == []
        rows.reserve("c", 5, NOTE)
        assert rows.make_room(30) == ["a"]
        rows.reserve("d", 90, NOTE)
        assert rows.make_room(30) == ["b"], "what is pinned or being written is never condemned"
        assert rows.room(30) == 20
        assert rows.make_room(None) == []
    manifest.close()


def test_threads_take_turns(path: Path) -> None:
    manifest = made(path)

    def work(index: int) -> None:
        for turn in range(20):
            with manifest.transaction() as rows:
                rows.settle(f"{index}-{turn}", 1, NOTE)

    in_threads(8, work)
    with manifest.read() as rows:
        assert rows.usage() == {"p": Usage(160, 160, 480)}
    manifest.close()


def test_a_transaction_that_will_not_wait_gives_up_at_once(path: Path) -> None:
    manifest = made(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreWriteError, match="locked"), manifest.transaction(wait=False):
        pytest.fail("nobody may write here")
    other.execute("ROLLBACK")
    other.close()
    with manifest.transaction(wait=False) as rows:
        rows.settle("a", 1, NOTE)
    manifest.close()


def test_a_damaged_database_is_said_to_be(path: Path) -> None:
    path.write_bytes(b"rubbish" * 1000)
    manifest = Manifest(path, "lru")
    with pytest.raises(StoreFormatError, match="open it again"):
        manifest.exists()
    manifest.close()


def test_a_closed_manifest_is_closed(path: Path) -> None:
    manifest = made(path)
    manifest.close()
    manifest.close()
    with pytest.raises(StoreClosedError), manifest.read():
        pytest.fail("nobody may read here")


def test_a_copy_is_loaded_without_a_trace(path: Path) -> None:
    manifest = made(path)
    with manifest.transaction() as rows:
        rows.settle("a", 1, NOTE)
    copy = Manifest(None, "lru")
    copy.load(path)
    with copy.transaction() as rows:
        assert rows.names("") == ["a"], "also what is only in the write-ahead log"
        rows.remove("a")
    with manifest.read() as rows:
        assert rows.names("") == ["a"]
    manifest.close()
    before = sorted(file.name for file in path.parent.iterdir())
    copy.load(path)
    with copy.read() as rows:
        assert rows.names("") == ["a"]
    assert sorted(file.name for file in path.parent.iterdir()) == before
    copy.close()


def test_what_cannot_be_loaded_is_said(path: Path) -> None:
    copy = Manifest(None, "lru")
    with pytest.raises(StoreFormatError, match="cannot be read"):
        copy.load(path)
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(StoreFormatError, match="cannot be read"):
        copy.load(path)
    copy.close()
