"""Tiered stores pass the suite in any order, serve from the fastest tier, and go on without one that fails."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from redis_servers import server, wait_until

from epic_rag.kvstore import redis_circuit
from epic_rag.kvstore.blobstore import BlobStore, Usage
from epic_rag.kvstore.conformance import BlobStoreSuite, MakeStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreUnavailableError, StoreWriteError
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.testing import chunk_blob, content, in_threads
from epic_rag.kvstore.tiered import TieredStore

OpenRedis = Callable[..., RedisStore]
PROFILE = EncodingProfile("m", "m", "float32", "{}", "t", "none", ())


class _Suite(BlobStoreSuite):
    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        assert isinstance(store, TieredStore)
        store.flush()
        held = {content(tier.get_range(name, 0, 1 << 40)) for tier in store._tiers}
        assert len(held) == 1, "all tiers hold the same"
        return held.pop()

    def raw_put(self, store: BlobStore, name: str, data: bytes) -> None:
        assert isinstance(store, TieredStore)
        store._tiers[-1].put(name, data)


class TestMemoryOverDisk(_Suite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: TieredStore([MemoryStore(), DiskStore(tmp_path)])


class TestSmallMemoryOverDisk(_Suite):
    """Nearly everything has to come from the disk."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: TieredStore([MemoryStore(100), DiskStore(tmp_path)])

    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        assert isinstance(store, TieredStore)
        return content(store._tiers[1].get_range(name, 0, 1 << 40))


class TestDiskOverRedis(_Suite):
    @pytest.fixture
    def make_store(self, tmp_path: Path, open_redis: OpenRedis, redis_uri: str) -> MakeStore:
        return lambda: TieredStore([DiskStore(tmp_path), open_redis(redis_uri)])


class TestWriteBack(_Suite):
    @pytest.fixture
    def make_store(self, tmp_path: Path, open_redis: OpenRedis, redis_uri: str) -> MakeStore:
        tiers = lambda: [MemoryStore(), DiskStore(tmp_path), open_redis(redis_uri)]  # noqa: E731
        return lambda: TieredStore(tiers(), write_back=[False, True, True])


class Broken(MemoryStore):
    """A tier that fails as long as it is told to."""

    failing = True

    def _fail(self) -> None:
        if self.failing:
            raise StoreUnavailableError("broken, as told")

    def get_many(self, names: Sequence[str]) -> list[memoryview | None]:
        self._fail()
        return super().get_many(names)

    def contains(self, names: Sequence[str]) -> list[bool]:
        self._fail()
        return super().contains(names)

    def touch(self, names: Sequence[str]) -> None:
        self._fail()
        super().touch(names)

    def quarantine(self, name: str, reason: str) -> None:
        self._fail()
        super().quarantine(name, reason)

    def reconcile(self) -> None:
        self._fail()

    def names(self, prefix: str = "") -> Iterator[str]:
        self._fail()
        return super().names(prefix)

    def _read_range(self, name: str, start: int, length: int) -> memoryview | None:
        self._fail()
        return super()._read_range(name, start, length)

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        if self.failing:
            raise OSError(5, "broken disk")
        super()._write(name, buffers, size_bytes)

    def _remove(self, name: str) -> bool:
        self._fail()
        return super()._remove(name)

    def _size(self, name: str) -> int | None:
        self._fail()
        return super()._size(name)


def settle(store: TieredStore) -> None:
    """Waits until nothing is left to do in the background."""
    wait_until(lambda: not store._moves._copies._jobs and not store._moves._loads._jobs, "the background")


def test_the_fastest_tier_serves_and_the_others_fill_up() -> None:
    fast, middle, slow = MemoryStore(), MemoryStore(), MemoryStore()
    with TieredStore([fast, middle, slow]) as store:
        slow.put("a", b"1")
        assert content(store.get("a")) == b"1"
        settle(store)
        assert [tier.contains(["a"])[0] for tier in (fast, middle, slow)] == [True, True, True]
        assert store.counts().promoted == 2
        store.get("a")
        numbers = store.tiers()
        assert [(tier.hits, tier.misses, tier.read_bytes) for tier in numbers] == [(1, 1, 1), (0, 1, 0), (1, 0, 1)]
        assert all(tier.read_seconds > 0 for tier in numbers)
        assert (store.stats().hits, store.stats().misses, store.stats().read_bytes) == (2, 0, 2)


def test_each_tier_is_asked_once_for_what_is_missing() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    with TieredStore([fast, slow]) as store:
        fast.put("a", b"1")
        slow.put("b", b"2")
        assert [one and (content(one.view), one.tier) for one in store.find_many(["b", "a", "c", "b"])] == [
            (b"2", "memory"),
            (b"1", "memory"),
            None,
            (b"2", "memory"),
        ]
        assert (fast.stats().hits, fast.stats().misses, slow.stats().hits, slow.stats().misses) == (1, 3, 2, 1)


def test_a_hit_names_the_tier_that_had_it(tmp_path: Path, open_redis: OpenRedis, redis_uri: str) -> None:
    kv = ChunkKV(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), torch.arange(3, dtype=torch.int32))
    key = chunk_key(PROFILE, kv.token_ids)
    remote = open_redis(redis_uri)
    with KVStore(TieredStore([MemoryStore(), DiskStore(tmp_path / "a"), remote])) as store:
        store.put(key, kv, profile=PROFILE, encode_seconds=1.0)
        hit = store.get(key, [0, 1, 2])
        assert hit is not None
        assert hit.tier == "memory"
    again = open_redis(redis_uri, namespace=remote.options.namespace)
    blobs = TieredStore([MemoryStore(), DiskStore(tmp_path / "b"), again])
    with KVStore(blobs) as store:
        served = []
        for _ in range(2):
            hit = store.get(key, [0, 1, 2])
            assert hit is not None
            served.append(hit.tier)
            settle(blobs)
        assert served == ["redis", "memory"]
        assert [tier.tier for tier in store.stats().tiers] == ["memory", "disk", "redis"]
    with KVStore(TieredStore([MemoryStore(), DiskStore(tmp_path / "b")])) as store:
        hit = store.get(key, [0, 1, 2])
        assert hit is not None
        assert hit.tier == "disk"
        assert store.stats().tokens == 3


def test_a_promotion_is_what_was_stored_whatever_the_reader_does(open_redis: OpenRedis, redis_uri: str) -> None:
    fast, slow = MemoryStore(), open_redis(redis_uri)
    data = bytes(300_000)
    slow.put("a", data)
    with TieredStore([fast, slow]) as store:
        view = store.get("a")
        assert view is not None
        assert not view.readonly
        view[:] = b"\xff" * len(view)
        settle(store)
        assert content(fast.get("a")) == data


def test_a_promotion_never_brings_back_what_changed() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    with TieredStore([fast, slow]) as store:
        for turn in range(200):
            fast.delete("a")
            slow.put("a", b"old")
            store.get("a")
            if turn % 2:
                store.delete("a")
            else:
                store.put("a", b"new")
            settle(store)
            expected = None if turn % 2 else b"new"
            assert [content(tier.get("a")) for tier in (fast, slow)] == [expected, expected]


def test_a_promotion_that_waits_for_a_lock_gives_up_when_the_blob_changes() -> None:
    fast, slow = MemoryStore(), MemoryStore()
    with TieredStore([fast, slow]) as store:
        slow.put("a", b"old")
        with store._locks.held("a"):
            store.get("a")
            time.sleep(0.05)
            slow.delete("a")
            store._moves.drop("a")
        settle(store)
        assert fast.get("a") is None
        assert store.counts().promoted == 0


def test_promotions_that_do_not_fit_are_left_out(open_redis: OpenRedis, redis_uri: str) -> None:
    tiny, slow = MemoryStore(10), open_redis(redis_uri)
    slow.put("a", bytes(100_000))
    with TieredStore([tiny, slow], queue_bytes=50_000) as store:
        assert store.get("a") is not None
        settle(store)
        assert store.counts().promotions_dropped == 1
    tiny, slower = MemoryStore(10), MemoryStore()
    slower.put("a", bytes(100))
    with TieredStore([tiny, slower]) as store:
        assert store.get("a") is not None
        settle(store)
        assert store.counts().promotions_failed == 1
        assert store.tiers()[1].hits == 1


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_tier_that_fails_is_passed_over_with_one_warning(where: int, caplog: pytest.LogCaptureFixture) -> None:
    tiers: list[BlobStore] = [MemoryStore(), MemoryStore()]
    broken = Broken()
    tiers.insert(where, broken)
    with TieredStore(tiers) as store:
        store.put("a", b"1")
        assert content(store.get("a")) == b"1"
        assert [content(view) for view in store.get_many(["a", "b"])] == [b"1", None]
        assert content(store.get_range("a", 0, 1)) == b"1"
        assert store.contains(["a", "b"]) == [True, False]
        assert store.size_bytes("a") == 1
        assert list(store.names()) == ["a"]
        assert store.usage() == {"": Usage(1, 1, 0)}
        store.touch(["a"])
        store.reconcile()
        assert store.prefetch(["a"]).wait(30)
        assert [tier.entries for tier in store.tiers()] == [0 if i == where else 1 for i in range(3)]
        store.quarantine("a", "damaged")
        assert store.get("a") is None
        store.put("a", b"2")
        assert store.delete("a")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"tier {where}" in caplog.text
        assert store.stats().failures > 8
        broken.failing = False
        store.put("a", b"3")
        assert content(broken.get("a")) == b"3"


def test_when_every_tier_fails_a_write_says_so_and_a_read_does_not() -> None:
    with TieredStore([Broken(), Broken()]) as store:
        with pytest.raises(StoreWriteError, match=r"no tier took it .*broken disk.*broken disk"):
            store.put("a", b"1")
        assert store.get("a") is None
        assert store.contains(["a"]) == [False]
        for call in (store.names, store.usage, store.stats, store.reconcile, lambda: store.delete("a")):
            with pytest.raises(StoreUnavailableError):
                call()


def test_a_tier_that_missed_a_write_does_not_serve_the_old_bytes() -> None:
    small, large = MemoryStore(10), MemoryStore()
    with TieredStore([small, large]) as store:
        store.put("a", b"old")
        store.put("a", bytes(11))
        assert content(store.get("a")) == bytes(11)
        assert small.get("a") is None


def test_redis_dies_and_comes_back_below_a_disk(
    tmp_path: Path, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.1)
    with server(tmp_path / "redis") as own:
        remote = open_redis(own.uri)
        with TieredStore([DiskStore(tmp_path / "disk"), remote]) as store:
            store.put("a", b"1")
            own.kill()
            store.put("b", b"2")
            assert [content(store.get(name)) for name in "ab"] == [b"1", b"2"]
            assert store.get("c") is None
            assert list(store.names()) == ["a", "b"]
            own.start()
            wait_until(lambda: remote.available, "the circuit")
            store.put("c", b"3")
            assert list(remote.names()) == ["c"]
            assert list(store.names()) == ["a", "b", "c"]


def test_what_is_damaged_goes_from_every_tier_that_has_the_same_bytes() -> None:
    for fast, middle, slow in itertools.product([b"bad", b"good", None], repeat=3):
        tiers = [MemoryStore(), MemoryStore(), MemoryStore()]
        for tier, data in zip(tiers, (fast, middle, slow), strict=True):
            if data is not None:
                tier.put("a", data)
        with TieredStore(tiers) as store:
            served = content(store.get("a"))
            store.quarantine("a", "damaged")
            settle(store)
            left = [content(tier.get("a")) for tier in tiers]
            assert served not in left or served is None
            assert [data for data in (fast, middle, slow) if data not in (served, None)] == [
                data for data in left if data is not None
            ]
            assert store.stats().corrupt == 1


def test_damaged_kv_in_a_slow_tier_is_found_once_and_made_anew(tmp_path: Path) -> None:
    kv = ChunkKV(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), torch.arange(3, dtype=torch.int32))
    key = chunk_key(PROFILE, kv.token_ids)
    blob = bytearray(chunk_blob("p", 3))
    blob[-1] ^= 1
    fast, slow = MemoryStore(), DiskStore(tmp_path)
    slow.put(key, blob)
    with KVStore(TieredStore([fast, slow])) as store:
        assert store.get(key, [0, 1, 2]) is None
        assert store.contains([key]) == [False]
        assert store.put(key, kv, profile=PROFILE, encode_seconds=1.0) > 0
        assert store.get(key, [0, 1, 2]) is not None
        assert store.stats().damaged == 1


def test_blobs_are_counted_once_wherever_they_are(tmp_path: Path) -> None:
    fast, slow = MemoryStore(), DiskStore(tmp_path)
    blob = chunk_blob("p", 5)
    with TieredStore([fast, slow]) as store:
        store.put("a", blob)
        fast.put("b", blob)
        fast.put("c", b"xyz")
        slow.put("d", blob)
        assert store.usage() == {"p": Usage(3, 3 * len(blob), 15), "": Usage(1, 3, 0)}
        assert (store.stats().tier, store.stats().entries, store.stats().budget_bytes) == ("tiered", 4, None)


def test_eight_threads_leave_all_tiers_alike(tmp_path: Path, open_redis: OpenRedis, redis_uri: str) -> None:
    tiers = [MemoryStore(), DiskStore(tmp_path), open_redis(redis_uri)]
    with TieredStore(tiers, write_back=[False, False, True]) as store:

        def work(index: int) -> None:
            for turn in range(30):
                name = f"k{(index + turn) % 5}"
                if turn % 7 == 3:
                    store.delete(name)
                else:
                    store.put(name, bytes([index, turn]) * 50)
                view = store.get(name)
                assert view is None or len(set(bytes(view))) <= 2

        in_threads(8, work)
        store.flush()
        settle(store)
        held = [{name: content(tier.get(name)) for name in tier.names()} for tier in tiers]
        assert held[0] == held[1] == held[2]


def test_bad_tiers_are_refused() -> None:
    for tiers, back in (([], []), ([MemoryStore()], [True]), ([MemoryStore()], [False, True])):
        with pytest.raises(ValueError, match="expected one that is written at once"):
            TieredStore(tiers, back)  # type: ignore[arg-type]


def test_closing_closes_the_tiers() -> None:
    tiers = [MemoryStore(), MemoryStore()]
    store = TieredStore(tiers)
    assert "memory, memory" in repr(store)
    store.close()
    assert all(tier._closed for tier in tiers)
