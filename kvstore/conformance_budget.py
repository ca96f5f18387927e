"""The suite of stores that keep a byte budget themselves; needs pytest."""

# ruff: noqa: D102 - the name of a test says what it checks

from typing import Protocol

import pytest

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.conformance import BlobStoreSuite
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.kvstore.testing import chunk_blob, content, share


class MakeBudgetedStore(Protocol):
    """Makes an empty store; the suite closes it."""

    def __call__(self, budget_bytes: int | None = None, replacement: str = "lru") -> BlobStore:
        """Make the store."""
        ...


class BudgetSuite(BlobStoreSuite):
    """What a blob store with a budget promises, besides what every one does."""

    @pytest.fixture
    def make_store(self) -> MakeBudgetedStore:
        """Return what makes an empty store; override."""
        raise NotImplementedError("override the fixture make_store")

    def test_the_budget_holds_exactly(self, make_store: MakeBudgetedStore) -> None:
        with make_store(100) as store:
            for i in range(30):
                store.put(f"k{i}", bytes(7 + i % 5))
                held = sum(store.size_bytes(name) or 0 for name in store.names())
                assert held == store.stats().bytes <= 100
                assert store.contains([f"k{i}"]) == [True]
            assert store.stats().replaced == 30 - store.stats().entries

    @pytest.mark.parametrize(
        ("replacement", "kept"),
        [("lru", ["b", "c", "d"]), ("lfu", ["a", "c", "d"]), ("gdsf", ["a", "b", "d"])],
    )
    def test_replacement_follows_the_policy(
        self, make_store: MakeBudgetedStore, replacement: str, kept: list[str]
    ) -> None:
        blobs = {name: chunk_blob(name, 4, cost) for name, cost in zip("abcd", (5.0, 5.0, 0.01, 5.0), strict=True)}
        with make_store(sum(map(len, blobs.values())) - 1, replacement) as store:
            for name in "abc":
                store.put(name, blobs[name])
            for name in "aaacbc":
                store.get(name)
            store.put("d", blobs["d"])
            assert list(store.names()) == kept

    def test_touch_counts_as_a_use(self, make_store: MakeBudgetedStore) -> None:
        with make_store(30) as store:
            for name in "abc":
                store.put(name, bytes(10))
            store.touch(["a", "absent"])
            store.put("d", bytes(10))
            assert list(store.names()) == ["a", "c", "d"]

    def test_what_cannot_fit_is_refused_and_costs_nothing(self, make_store: MakeBudgetedStore) -> None:
        with make_store(30) as store:
            store.put("a", bytes(20))
            with pytest.raises(StoreWriteError, match="budget"):
                store.put("b", bytes(31))
            with pytest.raises(StoreWriteError, match="budget"):
                store.put("a", bytes(31))
            assert content(store.get("a")) == bytes(20)
            assert (store.stats().entries, store.stats().bytes) == (1, 20)

    def test_records_are_never_replaced(self, make_store: MakeBudgetedStore) -> None:
        with make_store(30) as store:
            store.put(RECORD_PREFIX + "0", bytes(10))
            for i in range(5):
                store.put(f"k{i}", bytes(20))
            assert list(store.names()) == ["k4", RECORD_PREFIX + "0"]
            with pytest.raises(StoreWriteError, match="budget"):
                store.put("k5", bytes(21))

    def test_a_budget_below_one_is_refused(self, make_store: MakeBudgetedStore) -> None:
        with pytest.raises(ValueError, match="budget_bytes"):
            make_store(0)
        with pytest.raises(ValueError, match="lru"):
            make_store(1, "fifo")

    def test_threads_keep_to_the_budget(self, make_store: MakeBudgetedStore) -> None:
        with make_store(700) as store:
            share(store, 8, 40)
            held = [store.size_bytes(name) or 0 for name in store.names()]
            assert (len(held), sum(held)) == (store.stats().entries, store.stats().bytes)
            assert sum(held) <= 700
