"""The memory tier passes the suite."""

import pytest

from epic_rag.kvstore.blobstore import BlobNote, BlobStore
from epic_rag.kvstore.conformance_budget import BudgetSuite, MakeBudgetedStore
from epic_rag.kvstore.memory import MemoryStore, _Entry
from epic_rag.kvstore.testing import content


class TestMemoryStore(BudgetSuite):
    @pytest.fixture
    def make_store(self) -> MakeBudgetedStore:
        return MemoryStore

    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        entry = store._entries.get(name)
        return None if entry is None else entry.data

    def raw_put(self, store: BlobStore, name: str, data: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._entries[name] = _Entry(data, BlobNote())

    def test_a_view_is_read_only(self, store: BlobStore) -> None:
        store.put("a", bytearray(b"abc"))
        view = store.get("a")
        assert view is not None
        with pytest.raises(TypeError):
            view[0] = 1

    def test_the_bytes_are_copied_in(self, store: BlobStore) -> None:
        source = bytearray(b"abc")
        store.put("a", [source])
        source[0] = 0
        assert content(store.get("a")) == b"abc"
