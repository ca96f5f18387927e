"""The KV store gives back what was put, and treats everything doubtful as missing, aloud."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreClosedError, StoreWriteError
from epic_rag.kvstore.format import pack
from epic_rag.kvstore.header import build_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.reports import ProfileStats, VerifyReport
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.testing import in_threads

PROFILE = EncodingProfile("model", "name", "float32", "{}", "tokenizer", "warm:600", (1, 2))
OTHER = replace(PROFILE, salt="another tenant")
IDS = [5, 6, 7]


@pytest.fixture(params=["memory", "disk"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path)


@pytest.fixture
def store(blobs: BlobStore) -> Iterator[KVStore]:
    with KVStore(blobs) as store:
        yield store


def chunk(ids: list[int]) -> ChunkKV:
    keys = torch.rand(2, 1, len(ids), 4, generator=torch.Generator().manual_seed(sum(ids)))
    return ChunkKV(keys, -keys, torch.tensor(ids, dtype=torch.int32))


def put(store: KVStore, ids: list[int], profile: EncodingProfile = PROFILE) -> ChunkKey:
    key = chunk_key(profile, ids)
    store.put(key, chunk(ids), profile=profile, encode_seconds=0.5)
    return key


def damage(store: KVStore, name: str, at: int = -1) -> None:
    data = bytearray(store.blobs.get_range(name, 0, 10**9) or b"")
    data[at] ^= 1
    store.blobs.put(name, bytes(data))


def test_what_is_put_is_got(store: KVStore) -> None:
    key = put(store, IDS)
    for ids in (IDS, torch.tensor(IDS)):
        hit = store.get(key, ids)
        assert hit is not None
        assert torch.equal(hit.kv.keys, chunk(IDS).keys)
        assert torch.equal(hit.kv.values, chunk(IDS).values)
        assert hit.kv.token_ids.tolist() == IDS
        assert hit.tier == store.blobs.tier
        assert hit.num_bytes == store.blobs.size_bytes(key)


def test_what_is_not_there_is_none(store: KVStore) -> None:
    key = chunk_key(PROFILE, IDS)
    assert store.get(key, IDS) is None
    assert store.contains([key]) == [False]
    assert store.delete(key) is False
    assert store.profile(PROFILE.digest) is None
    assert store.profiles() == []


def test_put_returns_the_bytes_written_and_0_for_a_key_that_is_there(store: KVStore) -> None:
    key = chunk_key(PROFILE, IDS)
    written = store.put(key, chunk(IDS), profile=PROFILE, encode_seconds=0.5)
    assert written == store.blobs.size_bytes(key)
    assert store.put(key, chunk(IDS), profile=PROFILE, encode_seconds=0.5) == 0


@pytest.mark.parametrize(("ids", "profile", "seconds"), [([1], PROFILE, 0.0), (IDS, OTHER, 0.0), (IDS, PROFILE, -1.0)])
def test_put_refuses_what_would_poison_the_store(
    store: KVStore, ids: list[int], profile: EncodingProfile, seconds: float
) -> None:
    with pytest.raises(ValueError, match=r"key|encode_seconds"):
        store.put(chunk_key(PROFILE, IDS), chunk(ids), profile=profile, encode_seconds=seconds)
    assert list(store.blobs.names()) == []


def test_many_are_got_in_order(store: KVStore) -> None:
    one, two = put(store, [1]), put(store, [2])
    hits = store.get_many([(two, [2]), (chunk_key(PROFILE, [3]), [3]), (one, [1])])
    assert [None if hit is None else hit.kv.token_ids.tolist() for hit in hits] == [[2], None, [1]]


def test_deleted_is_gone(store: KVStore) -> None:
    key = put(store, IDS)
    assert store.delete(key) is True
    assert store.get(key, IDS) is None


def test_kv_of_other_tokens_is_a_miss_and_reported(store: KVStore, caplog: pytest.LogCaptureFixture) -> None:
    key = put(store, IDS)
    with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
        assert store.get(key, [5, 6, 8]) is None
    assert key in caplog.text
    stats = store.stats()
    assert (stats.mismatched, stats.damaged, stats.hits, stats.misses) == (1, 0, 0, 1)
    assert store.get(key, IDS) is not None, "the entry itself is good"


@pytest.mark.parametrize("at", [-1, 3, 100, 1000])
def test_a_damaged_blob_is_quarantined_reported_and_encoded_anew(
    store: KVStore, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    key = put(store, IDS)
    damage(store, key, at)
    with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
        assert store.get(key, IDS) is None
    assert key in caplog.text
    assert "quarantined" in caplog.text
    assert (store.stats().damaged, store.stats().tiers[0].corrupt, store.stats().entries) == (1, 1, 0)
    assert store.contains([key]) == [False]
    put(store, IDS)
    assert store.get(key, IDS) is not None


def test_a_blob_of_another_key_is_damage(store: KVStore) -> None:
    key, other = chunk_key(PROFILE, IDS), chunk_key(PROFILE, [1])
    store.blobs.put(key, b"".join(pack(other, chunk([1]), PROFILE.digest, 0.5)))
    assert store.get(key, IDS) is None
    assert store.stats().damaged == 1


def test_a_blob_of_a_later_version_is_a_miss_but_stays(store: KVStore, caplog: pytest.LogCaptureFixture) -> None:
    key = chunk_key(PROFILE, IDS)
    later = build_header({"format_version": "2", "codec": "none"}, [])
    store.blobs.put(key, later)
    with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
        assert store.get(key, IDS) is None
    assert "use the version that wrote the store" in caplog.text
    assert store.contains([key]) == [True]
    assert (store.stats().damaged, store.stats().misses) == (0, 1)


def test_profiles_are_recorded_with_their_first_chunk(store: KVStore) -> None:
    put(store, IDS)
    put(store, IDS, OTHER)
    store.put_profile(PROFILE)
    assert store.profile(PROFILE.digest) == PROFILE
    assert sorted(p.digest for p in store.profiles()) == sorted([PROFILE.digest, OTHER.digest])
    assert list(store.blobs.names("profile-")) == sorted(f"profile-{p.digest}" for p in (PROFILE, OTHER))


def test_a_damaged_profile_is_quarantined_and_missing(store: KVStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put_profile(PROFILE)
    data = PROFILE.to_json().replace(b"warm:600", b"warm:601")
    store.blobs.put(f"profile-{PROFILE.digest}", data)
    with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
        assert store.profile(PROFILE.digest) is None
    assert "digest" in caplog.text
    assert store.profiles() == []
    put(store, IDS)
    assert store.profile(PROFILE.digest) == PROFILE, "recorded again with the next chunk"


def test_stats_count_by_profile_without_reading_blobs(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [put(store, IDS), put(store, [1] * 10), put(store, [1] * 10, OTHER)]
    sizes = [store.blobs.size_bytes(key) or 0 for key in keys]
    store.get(keys[0], IDS)
    store.get(chunk_key(PROFILE, [9]), [9])
    monkeypatch.setattr(store.blobs, "_read", None)
    stats = store.stats()
    assert set(stats.profiles) == {
        ProfileStats(PROFILE.digest, 2, sizes[0] + sizes[1], 13),
        ProfileStats(OTHER.digest, 1, sizes[2], 10),
    }
    assert (stats.entries, stats.bytes, stats.tokens) == (3, sum(sizes), 23)
    assert (stats.hits, stats.misses, stats.mismatched, stats.damaged) == (1, 1, 0, 0)
    assert [tier.entries for tier in stats.tiers] == [5], "two records included"


def test_verify_lists_the_damaged_and_touches_nothing(store: KVStore) -> None:
    good, bad = put(store, IDS), put(store, [1])
    store.blobs.put("foreign", b"not ours to check")
    assert store.verify() == VerifyReport(3, [])
    damage(store, bad)
    store.blobs.put(f"profile-{OTHER.digest}", PROFILE.to_json())
    before = store.stats()
    report = store.verify()
    assert report.checked == 4
    assert [name for name, _ in report.damaged] == sorted([bad, f"profile-{OTHER.digest}"])
    assert all(reason for _, reason in report.damaged)
    assert store.stats() == before
    assert store.contains([good, bad]) == [True, True]


def test_kv_outlives_its_entry_and_the_store(blobs: BlobStore) -> None:
    with KVStore(blobs) as store:
        key = put(store, IDS)
        hit = store.get(key, IDS)
        store.delete(key)
    assert hit is not None
    assert torch.equal(hit.kv.keys, chunk(IDS).keys)
    with pytest.raises(StoreClosedError):
        store.get(key, IDS)


def test_changing_returned_kv_changes_nothing_stored(store: KVStore) -> None:
    key = put(store, IDS)
    hit = store.get(key, IDS)
    assert hit is not None
    hit.kv.keys.zero_()
    again = store.get(key, IDS)
    assert again is not None
    assert torch.equal(again.kv.keys, chunk(IDS).keys)


def test_a_chunk_larger_than_the_budget_is_refused() -> None:
    store = KVStore(MemoryStore(budget_bytes=500))
    with pytest.raises(StoreWriteError, match="budget"):
        put(store, IDS)


def test_threads_share_a_store(store: KVStore) -> None:
    chunks = [[i, i + 1, i + 2] for i in range(8)]

    def work(index: int) -> None:
        for turn in range(16):
            ids = chunks[(index + turn) % 8]
            key = chunk_key(PROFILE, ids)
            hit = store.get(key, ids)
            if hit is None:
                put(store, ids)
            else:
                assert torch.equal(hit.kv.keys, chunk(ids).keys)

    in_threads(8, work)
    stats = store.stats()
    assert (stats.entries, stats.tokens, stats.damaged) == (8, 24, 0)
    assert stats.hits + stats.misses == 8 * 16
