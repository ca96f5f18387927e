"""Copying between stores: whole, checked, resumable, one blob in memory at a time."""

import tracemalloc
from pathlib import Path

import pytest
import torch
from kv_chunks import SECRET, noise, same_bits

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.kvstore.header import parse_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.survey import StoredChunk, read_header, survey
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.transfer import TransferReport, copy_store

PROFILES = [EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", f"warm:{n}", ()) for n in (1, 2)]


def put(store: KVStore, profile: EncodingProfile, first: int, tokens: int = 3) -> ChunkKey:
    kv = noise(2, 2, tokens, 8)
    kv = ChunkKV(kv.keys, kv.values, torch.arange(first, first + tokens, dtype=torch.int32))
    key = chunk_key(profile, kv.token_ids)
    store.put(key, kv, profile=profile, encode_seconds=0.5)
    return key


def fill(store: KVStore, count: int = 4) -> list[ChunkKey]:
    return [put(store, profile, first) for profile in PROFILES for first in range(count)]


def contents(blobs: BlobStore) -> dict[str, bytes]:
    return {name: bytes(blobs.get_range(name, 0, 10**9) or b"") for name in blobs.names()}


@pytest.mark.parametrize("mac_key", [None, SECRET])
def test_everything_is_copied_byte_by_byte_and_only_once(tmp_path: Path, mac_key: bytes | None) -> None:
    with KVStore(DiskStore(tmp_path), "lz4", mac_key) as source, KVStore(MemoryStore(), mac_key=mac_key) as target:
        keys = fill(source)
        source.blobs.put("somebody-elses", b"bytes")
        before, told = source.blobs.stats(), []
        report = copy_store(source, target, lambda done, total: told.append((done, total)))
        whole = contents(source.blobs)
        del whole["somebody-elses"]
        assert contents(target.blobs) == whole
        total = 10 if mac_key is None else 11  # the record of the key goes along
        assert report == TransferReport(total, 0, sum(map(len, whole.values())), [])
        assert told == [(done, total) for done in range(1, total + 1)]
        assert source.blobs.stats() == before, "no use was counted"
        assert [target.get(key, range(i, i + 3)) is not None for i, key in enumerate(keys[:4])] == [True] * 4
        assert copy_store(source, target) == TransferReport(0, total, 0, [])


def test_an_interrupted_copy_goes_on_where_it_stopped(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise Stop

    with KVStore(DiskStore(tmp_path)) as source, KVStore(MemoryStore()) as target:
        fill(source)
        with pytest.raises(Stop):
            copy_store(source, target, stop)
        recorded = [profile.digest for profile in target.profiles()]
        assert sorted(recorded) == sorted(profile.digest for profile in PROFILES), "profiles go first"
        report = copy_store(source, target)
        assert (report.copied, report.present) == (5, 5)
        assert contents(target.blobs) == contents(source.blobs)


def test_what_is_damaged_or_unknown_is_left_out_and_listed(tmp_path: Path) -> None:
    with KVStore(DiskStore(tmp_path)) as source, KVStore(MemoryStore()) as target:
        keys = sorted(fill(source))
        data = bytearray(source.blobs.get(keys[0]) or b"")
        data[-1] ^= 1
        source.blobs.put(keys[0], data)
        source.blobs.put(keys[1], bytes(source.blobs.get(keys[2]) or b""))
        source.blobs.put(keys[3], bytes(source.blobs.get(keys[3]) or b"")[:100])
        record = f"profile-{PROFILES[0].digest}"
        source.blobs.put(record, PROFILES[1].to_json())
        report = copy_store(source, target)
        assert sorted(name for name, _ in report.left_out) == sorted([keys[0], keys[1], keys[3], record])
        assert all(reason for _, reason in report.left_out)
        assert report.copied == 6
        assert target.verify().damaged == []
        assert source.contains(keys) == [True] * 8, "the source is only read"


def test_blobs_without_the_mac_are_left_out(tmp_path: Path) -> None:
    with KVStore(DiskStore(tmp_path), mac_key=SECRET) as source, KVStore(MemoryStore(), mac_key=SECRET) as target:
        keys = [put(source, PROFILES[0], i) for i in range(2)]
        plain = KVStore(MemoryStore())
        put(plain, PROFILES[0], 0)
        source.blobs.put(keys[0], bytes(plain.blobs.get(keys[0]) or b""))
        report = copy_store(source, target)
        assert (report.copied, [name for name, _ in report.left_out]) == (3, [keys[0]])
        assert "MAC" in report.left_out[0][1]
        with pytest.raises(ValueError, match="same secret key"):
            copy_store(source, KVStore(MemoryStore()))


def test_what_the_target_lets_go_is_left_out(tmp_path: Path) -> None:
    with KVStore(DiskStore(tmp_path)) as source:
        for i in range(6):
            put(source, PROFILES[0], i)
        size_bytes = source.stats().bytes
        with KVStore(MemoryStore(budget_bytes=size_bytes // 2)) as target:
            report = copy_store(source, target)
            gone = [name for name, _ in report.left_out]
            assert gone
            assert not any(target.blobs.contains(gone))
            assert all("gave way" in reason for _, reason in report.left_out)


@pytest.mark.parametrize("codec", CODECS)
def test_the_targets_codec_is_used_for_what_has_none(codec: str) -> None:
    with KVStore(MemoryStore()) as source, KVStore(MemoryStore(), codec) as target:
        plain, coded = put(source, PROFILES[0], 0), put(KVStore(source.blobs, "int8"), PROFILES[0], 1)
        report = copy_store(source, target)
        assert parse_header(target.blobs.get(plain) or b"").codec == codec
        assert target.blobs.get(coded) == source.blobs.get(coded), "what is coded stays as it is"
        assert report.copied_bytes == target.blobs.stats().bytes
        header = parse_header(target.blobs.get(plain) or b"")
        assert (header.profile_digest, header.encode_seconds) == (PROFILES[0].digest, 0.5)
        one, two = (store.get(plain, [0, 1, 2]) for store in (source, target))
        assert one is not None
        assert two is not None
        assert same_bits(one.kv, two.kv) or codec.startswith("int8")


def test_a_target_that_takes_no_more_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    with KVStore(DiskStore(tmp_path)) as source, KVStore(MemoryStore(budget_bytes=1000)) as target:
        put(source, PROFILES[0], 0, 400)
        with pytest.raises(StoreWriteError, match="raise the budget"):
            copy_store(source, target)
        assert [profile.digest for profile in target.profiles()] == [PROFILES[0].digest]


def test_memory_stays_flat(tmp_path: Path) -> None:
    """40 blobs of 260 kB from disk to disk: never more than a few of them in Python's memory."""
    with KVStore(DiskStore(tmp_path / "a")) as source, KVStore(DiskStore(tmp_path / "b")) as target:
        for first in range(40):
            put(source, PROFILES[0], first, 4096)
        tracemalloc.start()
        report = copy_store(source, target)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.copied == 41
        print(f"{report.copied_bytes} bytes copied, at most {peak_bytes} in Python's memory")
        assert peak_bytes < report.copied_bytes / 10


def test_a_survey_reads_headers_only(tmp_path: Path) -> None:
    with KVStore(DiskStore(tmp_path), "zstd") as store:
        keys = fill(store, 2)
        store.blobs.put("somebody-elses", b"bytes")
        found = {chunk.key: chunk for chunk in survey(store.blobs)}
        assert set(found) == set(keys)
        size = store.blobs.size_bytes(keys[3]) or 0
        assert found[keys[3]] == StoredChunk(keys[3], size, PROFILES[1].digest)
        for wrong in (b"", b"rubbish", b"\xff" * 100):
            store.blobs.put(keys[0], wrong)
            assert read_header(store.blobs, keys[0]) is None
            assert len(list(survey(store.blobs))) == 3
        assert read_header(store.blobs, ChunkKey("0" * 64)) is None


def test_a_header_longer_than_the_first_range_is_read_too() -> None:
    profile = PROFILES[0]
    kv = noise(120, 1, 1, 1)
    key, store = chunk_key(profile, kv.token_ids), KVStore(MemoryStore())
    store.put(key, kv, profile=profile, encode_seconds=0.5)
    header = read_header(store.blobs, key)
    assert header is not None
    assert header.shape[0] == 120
    assert header.data_start > 16384


def test_stores_say_what_would_give_way(tmp_path: Path) -> None:
    for blobs in (MemoryStore(), DiskStore(tmp_path)):
        store = KVStore(blobs)
        keys = [put(store, PROFILES[0], first) for first in range(3)]
        store.get(keys[0], [0, 1, 2])
        if isinstance(blobs, DiskStore):
            store.close()  # which records the use
            blobs = DiskStore(tmp_path)
        assert list(blobs.by_rank()) == [keys[1], keys[2], keys[0]], "the record is not among them"
        blobs.close()
