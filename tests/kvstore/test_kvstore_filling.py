"""Reading into tensors that are there already, from files and from memory: the same KV, checked the same way."""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from kv_chunks import SECRET, noise, same_bits

from epic_rag.kvstore import filling
from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreClosedError, StoreFormatError
from epic_rag.kvstore.fileblob import FileBlob
from epic_rag.kvstore.filling import read_bytes, unpack_into
from epic_rag.kvstore.header import parse_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.openblob import OpensBlobs, ViewBlob
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV

PROFILE = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "none", ())
Places = tuple[torch.Tensor, torch.Tensor]


def put(store: KVStore, kv: ChunkKV) -> ChunkKey:
    key = chunk_key(PROFILE, kv.token_ids)
    store.put(key, kv, profile=PROFILE, encode_seconds=0.5)
    return key


def places(kv: ChunkKV, longer: int = 0) -> Places:
    """Tensors for a chunk, cut from longer ones."""
    shape = [*kv.keys.shape[:2], kv.num_tokens + longer, kv.keys.shape[3]]
    keys, values = torch.full((2, *shape), 7.0, dtype=kv.keys.dtype)
    return keys[:, :, : kv.num_tokens], values[:, :, : kv.num_tokens]


@pytest.mark.parametrize("mac_key", [None, SECRET])
@pytest.mark.parametrize("codec", CODECS)
def test_a_file_is_read_into_tensors(tmp_path: Path, codec: str, mac_key: bytes | None) -> None:
    kv = noise(3, 2, 40, 16)
    with KVStore(DiskStore(tmp_path), codec, mac_key) as store:
        key = put(store, kv)
        out, plain = places(kv, longer=5), store.get(key, kv.token_ids)
        hit = store.get(key, kv.token_ids, out=out)
        assert hit is not None
        assert plain is not None
        assert hit.kv.keys is out[0]
        assert same_bits(hit.kv, plain.kv)
        assert (hit.tier, hit.num_bytes) == ("disk", store.blobs.size_bytes(key))
        stats = store.blobs.stats()
        assert (stats.hits, stats.misses, stats.read_bytes) == (2, 0, 2 * hit.num_bytes)
        assert store.stats().hits == 2


def test_what_is_not_there_or_other_or_damaged_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kv = noise(3, 2, 40, 16)
    with KVStore(DiskStore(tmp_path)) as store:
        assert isinstance(store.blobs, OpensBlobs)
        assert store.get(ChunkKey("0" * 64), [1], out=places(kv)) is None
        assert store.blobs.stats().misses == 1
        key = put(store, kv)
        assert store.get(key, list(range(1, 41)), out=places(kv)) is None
        assert store.stats().mismatched == 1
        with pytest.raises(ValueError, match="out, keys"):
            store.get(key, kv.token_ids, out=places(noise()))
        path = next(tmp_path.rglob(f"{key}*"))
        for damage in (
            lambda data: data[:-1] + b"?",
            lambda data: data[:-100],
            lambda data: data[:9],
            lambda data: b"",
        ):
            path.write_bytes(damage(path.read_bytes()))
            with caplog.at_level(logging.WARNING, "epic_rag.kvstore"):
                assert store.get(key, kv.token_ids, out=places(kv)) is None
            assert store.contains([key]) == [False], "quarantined"
            put(store, kv)
        assert store.stats().damaged == 4


def test_an_open_blob_outlives_its_replacement(tmp_path: Path) -> None:
    with DiskStore(tmp_path) as store:
        store.put("a", b"old bytes")
        with store.open_blob("a") as blob:
            assert blob is not None
            store.put("a", b"new")
            store.delete("a")
            assert (blob.num_bytes, bytes(read_bytes(blob, 4, 5))) == (9, b"bytes")
        with store.open_blob("a") as blob:
            assert blob is None
        for bad in ("../a", ""):
            with pytest.raises(ValueError, match="blob name"), store.open_blob(bad):
                pass
    with pytest.raises(StoreClosedError), store.open_blob("a"):
        pass


def test_pieces_come_one_after_the_other_and_never_short(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 20)
    with path.open("rb") as file:
        for blob in (FileBlob(file.fileno()), ViewBlob(memoryview(path.read_bytes()))):
            assert blob.num_bytes == 5120
            pieces = [memoryview(bytearray(2)) for _ in range(2000)]
            blob.read(10, pieces)
            assert b"".join(pieces) == path.read_bytes()[10:4010], "more buffers than one system call takes"
            for start, length in ((5119, 2), (5120, 1), (9999, 1)):
                with pytest.raises(StoreFormatError, match="truncated"):
                    read_bytes(blob, start, length)


def test_a_bad_block_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    file = path.open("rb")
    blob = FileBlob(file.fileno())
    file.close()
    with pytest.raises(StoreFormatError, match="cannot be read"):
        read_bytes(blob, 0, 5)


def test_a_header_longer_than_the_first_read_is_read_too() -> None:
    kv = noise(120, 1, 1, 1)
    store = KVStore(MemoryStore())
    key = put(store, kv)
    out = places(kv)
    data = store.blobs.get(key)
    assert data is not None
    assert same_bits(unpack_into(ViewBlob(data), key, out), kv)


@pytest.fixture
def large() -> ChunkKV:
    """KV that is read in two threads."""
    return noise(6, 2, 512, 128)


def test_a_large_file_is_read_in_two_threads(tmp_path: Path, large: ChunkKV, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = set()
    real = FileBlob.read

    def read(self: FileBlob, start: int, buffers: Sequence[memoryview]) -> None:
        readers.add(threading.current_thread().name)
        real(self, start, buffers)

    monkeypatch.setattr(FileBlob, "read", read)
    monkeypatch.setattr(filling, "CORES", 2)
    with KVStore(DiskStore(tmp_path)) as store:
        key = put(store, large)
        hit = store.get(key, large.token_ids, out=places(large, longer=3))
        assert hit is not None
        assert same_bits(hit.kv, large)
        assert len(readers) == 2
        for layer in (0, 5):  # damage that either thread finds
            data = bytearray(store.blobs.get(key) or b"")
            data[parse_header(data).layers[layer].start + 9] ^= 1
            store.blobs.put(key, data)
            assert store.get(key, large.token_ids, out=places(large)) is None
            put(store, large)


def test_when_every_thread_is_busy_the_reader_reads_all_of_it(
    tmp_path: Path, large: ChunkKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "CORES", 2)
    busy, done = filling._threads(os.getpid()), threading.Event()
    blockers = [busy.submit(done.wait, 60) for _ in range(4)]
    with KVStore(DiskStore(tmp_path)) as store:
        hit = store.get(put(store, large), large.token_ids, out=places(large))
    done.set()
    assert all(blocker.result(60) for blocker in blockers)
    assert hit is not None
    assert same_bits(hit.kv, large)
