"""Store addresses."""

from pathlib import Path

import pytest

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreURIError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.replacement import GDSF, LRU
from epic_rag.kvstore.uri import open_store, store_folder


def opened(uri: str) -> BlobStore:
    with open_store(uri) as store:
        return store.blobs


def test_memory() -> None:
    blobs = opened("memory://?budget=10kB&replacement=gdsf")
    assert isinstance(blobs, MemoryStore)
    assert blobs.budget_bytes == 10_000
    assert isinstance(blobs._policy, GDSF)


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "odd name?x%20").mkdir()
    for uri, path in (
        (f"disk://{tmp_path}/a", tmp_path / "a"),
        ("disk://b/c", tmp_path / "b/c"),
        ("d/e", tmp_path / "d/e"),
        ("f?budget=1", tmp_path / "f"),
        ("~/g", tmp_path / "home/g"),
        ("disk://~/h", tmp_path / "home/h"),
        ("disk://i%3Fj%20k", tmp_path / "i?j k"),
        ("l%20m", tmp_path / "l%20m"),
    ):
        blobs = opened(uri)
        assert isinstance(blobs, DiskStore)
        assert blobs.path == path == store_folder(uri)
        assert path.is_dir()


def test_only_disk_stores_have_a_folder() -> None:
    assert [store_folder(uri) for uri in ("memory://", "redis://host", "disk://", "")] == [None] * 4


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("5", 5), ("5B", 5), ("10GB", 10**10), ("1.5MiB", 3 * 2**19), ("2tb", 2 * 10**12), ("3%20KiB", 3072)],
)
def test_budgets(text: str, size_bytes: int) -> None:
    assert opened(f"memory://?budget={text}").budget_bytes == size_bytes


def test_without_options_there_is_no_budget_and_lru() -> None:
    blobs = opened("memory://")
    assert isinstance(blobs, MemoryStore)
    assert blobs.budget_bytes is None
    assert isinstance(blobs._policy, LRU)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/x", "'ftp' is unknown"),
        ("://x", "'' is unknown"),
        ("memory://x", "takes no path"),
        ("disk://", "path is missing"),
        ("", "path is missing"),
        ("disk://?budget=1", "path is missing"),
        ("memory://?budget=lots", "'lots' is not a size"),
        ("memory://?budget=0", "'0' is not a size"),
        ("memory://?budget=-1GB", "not a size"),
        ("memory://?budget=", "'' is not a size"),
        ("memory://?replacement=fifo", "'fifo' is unknown"),
        ("memory://?size=1", "option 'size' is unknown"),
        ("memory://?budget", "malformed"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_known(uri: str, words: str) -> None:
    with pytest.raises(StoreURIError, match="disk:///absolute/path") as caught:
        open_store(uri)
    assert words in str(caught.value)
    assert repr(uri) in str(caught.value)
