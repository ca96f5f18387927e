"""The suite that every blob store passes; needs pytest.

To test a store of your own, subclass `BlobStoreSuite` in a test file, override the fixture `make_store`, and the two
raw accessors, which read and write behind the store's back so that `get` and `put` are tested apart. A store that
keeps a byte budget itself takes `BudgetSuite` instead.
"""

# ruff: noqa: D102 - the name of a test says what it checks

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
import torch

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore, Usage
from epic_rag.kvstore.errors import StoreClosedError
from epic_rag.kvstore.testing import NAME, chunk_blob, content, share

OTHER = "f1" * 32
CALLS: dict[str, Callable[[BlobStore], object]] = {
    "get": lambda store: store.get(NAME),
    "get_many": lambda store: store.get_many([NAME]),
    "get_range": lambda store: store.get_range(NAME, 0, 1),
    "put": lambda store: store.put(NAME, b"x"),
    "delete": lambda store: store.delete(NAME),
    "contains": lambda store: store.contains([NAME]),
    "find": lambda store: store.find(NAME),
    "prefetch": lambda store: store.prefetch([NAME]),
    "tiers": lambda store: store.tiers(),
    "names": lambda store: store.names(),
    "size_bytes": lambda store: store.size_bytes(NAME),
    "touch": lambda store: store.touch([NAME]),
    "quarantine": lambda store: store.quarantine(NAME, "damaged"),
    "usage": lambda store: store.usage(),
    "stats": lambda store: store.stats(),
    "reconcile": lambda store: store.reconcile(),
}


MakeStore: TypeAlias = Callable[[], BlobStore]
"""Makes an empty store; the suite closes it."""


class BlobStoreSuite:
    """What every blob store promises; `conformance_budget.BudgetSuite` adds what those with a budget promise."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return what makes an empty store; override."""
        raise NotImplementedError("override the fixture make_store")

    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        """Read a blob behind the store's back; override."""
        raise NotImplementedError

    def raw_put(self, store: BlobStore, name: str, data: bytes) -> None:
        """Write a blob behind the store's back; override."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[BlobStore]:
        """An empty store without a budget."""
        with make_store() as store:
            yield store

    def test_get_reads_what_is_stored(self, store: BlobStore) -> None:
        self.raw_put(store, NAME, b"abc")
        view = store.get(NAME)
        assert isinstance(view, memoryview)
        assert content(view) == b"abc"

    @pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 5000], ids=["empty", "byte", "large"])
    def test_put_stores_the_bytes(self, store: BlobStore, data: bytes) -> None:
        store.put(NAME, data)
        assert self.raw_get(store, NAME) == data
        assert content(store.get(NAME)) == data

    def test_put_takes_buffers_one_after_the_other(self, store: BlobStore) -> None:
        store.put(NAME, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], torch.arange(2).numpy().data])
        assert content(store.get(NAME)) == b"abcdef" + bytes([0] * 8 + [1] + [0] * 7)
        store.put(OTHER, [])
        assert content(store.get(OTHER)) == b""

    def test_put_replaces(self, store: BlobStore) -> None:
        for data in (b"first", b"2", b"the third"):
            store.put(NAME, data)
            assert content(store.get(NAME)) == data
        assert (store.stats().entries, store.stats().bytes) == (1, 9)

    def test_what_is_not_stored_is_none(self, store: BlobStore) -> None:
        assert store.get(NAME) is None
        assert store.get_range(NAME, 0, 1) is None
        assert store.size_bytes(NAME) is None
        assert store.delete(NAME) is False
        assert list(store.names()) == []

    @pytest.mark.parametrize("name", ["", "A", "a_b", "a/b", "..", "a.b", "a b", "é", "a\n", "a" * 161])
    def test_bad_names_are_refused(self, store: BlobStore, name: str) -> None:
        for call in (
            store.get,
            store.delete,
            store.size_bytes,
            lambda n: store.put(n, b""),
            lambda n: store.touch([n]),
        ):
            with pytest.raises(ValueError, match="name"):
                call(name)
        with pytest.raises(ValueError, match="name"):
            store.contains([NAME, name])

    @pytest.mark.parametrize("name", ["a", "-", "--", "0-z", "a" * 160])
    def test_odd_names_are_good(self, store: BlobStore, name: str) -> None:
        store.put(name, b"x")
        assert list(store.names()) == [name]
        assert content(store.get(name)) == b"x"

    @pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 5), (0, 10), (8, 5), (10, 1), (50, 2), (4, 0)])
    def test_get_range_is_a_slice(self, store: BlobStore, start: int, length: int) -> None:
        store.put(NAME, b"0123456789")
        assert content(store.get_range(NAME, start, length)) == b"0123456789"[start : start + length]

    def test_get_range_refuses_negative_numbers(self, store: BlobStore) -> None:
        for start, length in ((-1, 1), (0, -1)):
            with pytest.raises(ValueError, match="at least 0"):
                store.get_range(NAME, start, length)

    def test_get_many_keeps_the_order(self, store: BlobStore) -> None:
        store.put(NAME, b"1")
        store.put(OTHER, b"2")
        assert list(map(content, store.get_many([OTHER, "absent", NAME, OTHER]))) == [b"2", None, b"1", b"2"]

    @pytest.mark.parametrize(("start", "length"), [(0, 300_000), (65_535, 2), (65_536, 65_536), (100_000, 150_001)])
    def test_get_range_of_a_large_blob(self, store: BlobStore, start: int, length: int) -> None:
        data = bytes(i * i % 251 for i in range(300_000))
        store.put(NAME, data)
        assert content(store.get_range(NAME, start, length)) == data[start : start + length]

    def test_find_tells_the_tier(self, store: BlobStore) -> None:
        store.put(NAME, b"1")
        found = store.find(NAME)
        assert found is not None
        assert content(found.view) == b"1"
        assert found.tier in {numbers.tier for numbers in store.tiers()}
        assert [one and content(one.view) for one in store.find_many(["absent", NAME])] == [None, b"1"]

    def test_prefetch_changes_nothing_to_see(self, store: BlobStore) -> None:
        store.put(NAME, b"1")
        assert store.prefetch([NAME, "absent"]).wait(30)
        assert content(store.get(NAME)) == b"1"
        assert list(store.names()) == [NAME]

    def test_a_view_outlives_its_blob(self, make_store: MakeStore) -> None:
        data = bytes(range(256)) * 100
        with make_store() as store:
            store.put(NAME, data)
            view = store.get(NAME)
            store.put(NAME, b"other")
            assert content(view) == data
            store.delete(NAME)
            assert content(view) == data
        assert content(view) == data

    def test_writing_into_a_view_changes_nothing_stored(self, store: BlobStore) -> None:
        store.put(NAME, b"abc")
        view = store.get(NAME)
        assert view is not None
        if not view.readonly:
            view[0] = 0
        assert content(store.get(NAME)) == b"abc"

    def test_delete_removes(self, store: BlobStore) -> None:
        store.put(NAME, b"abc")
        store.put(OTHER, b"de")
        assert store.delete(NAME) is True
        assert store.delete(NAME) is False
        assert self.raw_get(store, NAME) is None
        assert store.contains([NAME, OTHER]) == [False, True]
        assert (store.stats().entries, store.stats().bytes) == (1, 2)

    def test_names_are_sorted_and_as_they_were(self, store: BlobStore) -> None:
        for name in ("b", "a-z", "a", "a-0", "z"):
            store.put(name, b"")
        names = store.names()
        store.put("c", b"")
        assert list(names) == ["a", "a-0", "a-z", "b", "z"]
        assert list(store.names("a-")) == ["a-0", "a-z"]
        assert list(store.names("y")) == []

    def test_stats_count(self, store: BlobStore) -> None:
        store.put(NAME, b"abc")
        for name in (NAME, NAME, OTHER):
            store.get(name)
        store.get_range(NAME, 0, 2)
        store.contains([NAME])
        stats = store.stats()
        assert (stats.tier, stats.entries, stats.bytes) == (store.tier, 1, 3)
        assert (stats.hits, stats.misses, stats.puts, stats.replaced, stats.corrupt) == (2, 1, 1, 0, 0)
        assert (stats.read_bytes, stats.written_bytes, stats.failures) == (6, 3, 0)
        assert stats.read_seconds > 0
        assert stats.write_seconds > 0

    def test_usage_is_known_by_profile(self, store: BlobStore) -> None:
        small, large = chunk_blob("p", 2), chunk_blob("p", 30)
        store.put("a", small)
        store.put("b", [large[:1000], large[1000:]])
        store.put("c", chunk_blob("q", 5))
        store.put(RECORD_PREFIX + "p", b"{}")
        assert store.usage()["p"] == Usage(2, len(small) + len(large), 32)
        assert store.usage()["q"].tokens == 5
        assert store.usage()[""] == Usage(1, 2, 0)
        store.put("b", small)
        store.delete("c")
        assert store.usage() == {"p": Usage(2, 2 * len(small), 4), "": Usage(1, 2, 0)}

    def test_quarantine_takes_out_of_use(self, store: BlobStore) -> None:
        store.put(NAME, b"abc")
        store.quarantine(NAME, "a flipped bit")
        store.quarantine(OTHER, "never was there")
        assert store.get(NAME) is None
        assert (store.stats().corrupt, store.stats().entries, store.stats().bytes) == (2, 0, 0)
        store.put(NAME, b"good")
        assert content(store.get(NAME)) == b"good"

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    def test_a_closed_store_says_so(self, make_store: MakeStore, call: Callable[[BlobStore], object]) -> None:
        store = make_store()
        store.close()
        store.close()
        with pytest.raises(StoreClosedError, match="open it again"):
            call(store)

    def test_threads_see_whole_blobs_and_the_books_balance(self, store: BlobStore) -> None:
        assert share(store, 8, 40) == store.stats().puts == 8 * 40
        held = [store.size_bytes(name) or 0 for name in store.names()]
        assert (len(held), sum(held)) == (store.stats().entries, store.stats().bytes)

    def test_the_asyncio_face_does_the_same(self, store: BlobStore) -> None:
        async def work() -> None:
            await asyncio.gather(*(store.aput(f"k{i}", bytes([i])) for i in range(9)))
            assert content(await store.aget("k3")) == b"\3"
            assert list(map(content, await store.aget_many(["k1", "absent"]))) == [b"\1", None]
            assert content(await store.aget_range("k3", 0, 5)) == b"\3"
            assert await store.acontains(["k8", "k9"]) == [True, False]
            assert await store.adelete("k8") is True
            assert await store.anames("k") == [f"k{i}" for i in range(8)]

        asyncio.run(work())
        assert content(store.get("k0")) == b"\0"
