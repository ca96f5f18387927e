"""The LangChain face passes LangChain's own suites over every tier, and caches embeddings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from langchain_core.stores import BaseStore
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.langchain_store import BlobByteStore
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.tiered import TieredStore


@pytest.fixture(params=["memory", "disk", "redis", "redis cluster", "memory over disk", "disk over redis"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, open_redis: Callable[..., BlobStore]) -> Iterator[BlobStore]:
    def redis() -> BlobStore:
        return open_redis(request.getfixturevalue("redis_uri"))

    make: dict[str, Callable[[], BlobStore]] = {
        "memory": MemoryStore,
        "disk": lambda: DiskStore(tmp_path),
        "redis": redis,
        "redis cluster": lambda: open_redis(request.getfixturevalue("redis_cluster_uri")),
        "memory over disk": lambda: TieredStore([MemoryStore(), DiskStore(tmp_path)]),
        "disk over redis": lambda: TieredStore([DiskStore(tmp_path), redis()]),
    }
    with make[request.param]() as store:
        yield store


class TestSync(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, blobs: BlobStore) -> BaseStore[str, bytes]:
        return BlobByteStore(blobs)

    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:
        return b"one", b"", b"\0\xff"


class TestAsync(BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    async def kv_store(self, blobs: BlobStore) -> BaseStore[str, bytes]:
        return BlobByteStore(blobs)

    @pytest.fixture
    def three_values(self) -> tuple[bytes, bytes, bytes]:
        return b"one", b"", b"\0\xff"


def test_values_are_bytes_of_their_own(blobs: BlobStore) -> None:
    store = BlobByteStore(blobs)
    store.mset([("a", b"1")])
    assert [type(value) for value in store.mget(["a", "b"])] == [bytes, type(None)]


async def test_keys_by_prefix(blobs: BlobStore) -> None:
    store = BlobByteStore(blobs)
    await store.amset([("b-1", b""), ("a-1", b""), ("a-0", b"")])
    assert list(store.yield_keys(prefix="a-")) == ["a-0", "a-1"]
    assert [key async for key in store.ayield_keys(prefix="b")] == ["b-1"]


def test_a_key_that_is_no_blob_name_is_refused(blobs: BlobStore) -> None:
    with pytest.raises(ValueError, match="blob name"):
        BlobByteStore(blobs).mset([("../x", b"")])
