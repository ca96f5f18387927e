"""The LangChain face passes LangChain's own suites over both tiers, and caches embeddings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.stores import BaseStore
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.langchain_store import BlobByteStore
from epic_rag.kvstore.memory import MemoryStore


@pytest.fixture(params=["memory", "disk"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    with MemoryStore() if request.param == "memory" else DiskStore(tmp_path) as store:
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
