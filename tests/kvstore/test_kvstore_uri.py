"""Store addresses."""

from pathlib import Path

import pytest

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreURIError, StoreWriteError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.replacement import GDSF, LRU
from epic_rag.kvstore.tiered import TieredStore
from epic_rag.kvstore.uri import open_store, store_exists, store_folder, store_place


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
    uris = ("memory://", "redis://host", "disk://", "", "tiered:memory://,redis://h", "tiered:", "disk://x?broken")
    assert [store_folder(uri) for uri in uris] == [None] * 7


def test_tiered(tmp_path: Path, redis_uri: str) -> None:
    uri = f"tiered:memory://?budget=1kB,disk://{tmp_path}/a?replacement=lfu,disk://{tmp_path}/b?write=back,{redis_uri}"
    with open_store(uri) as store:
        blobs = store.blobs
        assert isinstance(blobs, TieredStore)
        assert [tier.tier for tier in blobs.tiers()] == ["memory", "disk", "disk", "redis"]
        assert blobs._back == [False, False, True, False]
        assert blobs.tiers()[0].budget_bytes == 1000
    assert store_folder(uri) == tmp_path / "a"


def test_tiers_that_were_opened_are_closed_when_a_later_one_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreWriteError):
        open_store(f"tiered:disk://{tmp_path}/a,disk://{tmp_path}/file")


def test_redis(redis_uri: str) -> None:
    with open_store(redis_uri + "?namespace=uri&codec=int8+lz4&timeout=10") as store:
        assert isinstance(store.blobs, RedisStore)
        assert store.codec == "int8+lz4"
        store.blobs.put("a", b"1")
        assert store.blobs.delete("a")


def test_a_key_seals_what_is_written(tmp_path: Path) -> None:
    with open_store(f"tiered:memory://,disk://{tmp_path}?codec=int8", b"0" * 32) as store:
        assert store.codec == "int8"
        assert not store.same_key(open_store("memory://"))
        assert store.same_key(open_store("memory://", b"0" * 32))


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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://host:6379/0", "redis://user:p%40ss@host:6379/0?ttl=7d&timeout=1&codec=lz4", True),
        ("redis://host", "tiered:memory://?budget=1GB,redis://:secret@host", True),
        ("redis://host", "redis://host?namespace=other", False),
        ("redis://host", "redis://elsewhere", False),
        ("redis://host/0", "redis://host/1", False),
    ],
)
def test_a_place_is_what_stays_when_the_password_changes(one: str, other: str, same: bool) -> None:
    assert (store_place(one) == store_place(other)) is same
    assert "secret" not in (store_place(other) or "")


def test_what_is_only_in_memory_has_no_place() -> None:
    assert store_place("memory://?budget=1GB") is None
    assert store_place("tiered:memory://,memory://") is None


def test_a_folder_is_a_store_once_it_was_opened(tmp_path: Path) -> None:
    uri = f"tiered:memory://,disk://{tmp_path / 'store'}"
    assert not store_exists(uri)
    opened(uri)
    assert store_exists(uri)
    assert store_exists("redis://host"), "which only the server can tell"
