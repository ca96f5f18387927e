"""Statistics travel with a chunk in every codec and tier, are checked, and cost other readers nothing."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash
from kv_chunks import KEY, PROFILE, SECRET, noise, ramp, reseal, same_bits

from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreFormatError, StoreTrustError
from epic_rag.kvstore.filling import unpack_into
from epic_rag.kvstore.format import check, pack, unpack
from epic_rag.kvstore.header import BlobHeader, build_header, header_bytes, parse_header
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.openblob import ViewBlob
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.transfer import copy_store

GOLDEN = Path(__file__).parent / "data" / "kv-v1-stats.safetensors"
ENCODING = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "none", ())
OURS = Authenticator(SECRET)


def measured(kv: ChunkKV) -> ChunkKV:
    """The chunk with statistics that differ everywhere."""
    num_layers, num_kv_heads, num_tokens, _ = kv.keys.shape
    numbers = torch.arange(1, num_layers * num_kv_heads * 2 * num_tokens + 1, dtype=torch.float16)
    return ChunkKV(kv.keys, kv.values, kv.token_ids, numbers.view(num_layers, num_kv_heads, 2, num_tokens) / 2048)


def blob(kv: ChunkKV, codec: str = "none", authenticator: Authenticator | None = None) -> bytes:
    return b"".join(pack(KEY, kv, PROFILE, 0.25, codec, authenticator))


def same(one: ChunkKV, two: ChunkKV) -> bool:
    both = one.stats is not None and two.stats is not None and torch.equal(one.stats, two.stats)
    return both and same_bits(one, two)


@pytest.mark.parametrize("mac", [None, OURS])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("tokens", "dtype"), [(3, torch.bfloat16), (41, torch.float32), (7, torch.float16)])
def test_they_read_back_every_way(codec: str, mac: Authenticator | None, tokens: int, dtype: torch.dtype) -> None:
    kv = measured(noise(3, 2, tokens, 5, dtype))
    plain = unpack(blob(noise(3, 2, tokens, 5, dtype), codec), KEY)
    data = blob(kv, codec, mac)
    back = unpack(data, KEY, mac)
    assert same(back, ChunkKV(plain.keys, plain.values, plain.token_ids, kv.stats))
    assert check(data, KEY, mac).stats
    out = torch.empty_like(kv.keys), torch.empty_like(kv.values)
    assert same(unpack_into(ViewBlob(memoryview(data)), KEY, out, mac), back)


def test_they_are_a_copy_even_of_a_writable_buffer() -> None:
    data = bytearray(blob(measured(ramp())))
    back = unpack(data, KEY)
    data[-2:] = b"\0\0"
    assert back.stats is not None
    assert back.stats[-1, -1, -1, -1] != 0


@pytest.mark.parametrize("mac", [None, OURS])
@pytest.mark.parametrize("codec", ["none", "int8"])
def test_every_flipped_byte_and_truncation_is_found(codec: str, mac: Authenticator | None) -> None:
    data = bytearray(blob(measured(ramp()), codec, mac))
    out = torch.empty(2, 2, 2, 3, 4, dtype=torch.bfloat16).unbind()
    for index in range(header_bytes(data), len(data)):
        data[index] ^= 0x40
        for read in (
            lambda: unpack(data, KEY, mac),
            lambda: check(data, KEY, mac),
            lambda: unpack_into(ViewBlob(memoryview(data)), KEY, (out[0], out[1]), mac),
        ):
            with pytest.raises(StoreFormatError, match="checksum"):
                read()
        data[index] ^= 0x40
    for length in range(header_bytes(data), len(data)):
        with pytest.raises(StoreFormatError):
            unpack(data[:length], KEY, mac)


def test_forged_statistics_under_good_public_checksums_are_refused_with_a_key() -> None:
    data = blob(measured(ramp()), authenticator=OURS)
    start, length = parse_header(data).stats[0]
    old, new = data[start : start + length], bytes(length)
    forged = reseal(
        data[:start] + new + data[start + length :],
        lambda header: header.replace(xxhash.xxh3_128_hexdigest(old).encode(), xxhash.xxh3_128_hexdigest(new).encode()),
    )
    assert unpack(forged, KEY).stats is not None
    with pytest.raises(StoreTrustError):
        unpack(forged, KEY, OURS)


def test_the_golden_file_is_what_the_specification_says() -> None:
    """Read with nothing but docs/kv-format.md in hand; kept for ever."""
    data = GOLDEN.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:start])
    metadata = table.pop("__metadata__")
    kv, plane, stats = measured(ramp()), 2 * 3 * 4 * 2, 2 * 2 * 3 * 2
    assert kv.stats is not None
    assert list(table) == [
        "token_ids",
        *(f"layer.{i}.{n}" for i in (0, 1) for n in ("keys", "values", "stats.attention")),
    ]
    assert table["layer.0.stats.attention"] == {
        "dtype": "F16",
        "shape": [2, 2, 3],
        "data_offsets": [12 + 2 * plane, 12 + 2 * plane + stats],
    }
    layer = data[start + 12 : start + 12 + 2 * plane + stats]
    assert metadata["checksum.layer.0"] == xxhash.xxh3_128_hexdigest(layer[: 2 * plane]), "as without statistics"
    assert metadata["checksum.layer.0.stats"] == xxhash.xxh3_128_hexdigest(layer[2 * plane :])
    assert layer[2 * plane :] == kv.stats[0].numpy().astype("<f2").tobytes()
    assert torch.equal(safetensors.torch.load(data)["layer.1.stats.attention"], kv.stats[1])
    assert same(unpack(data, KEY), kv)
    assert blob(kv) == data


def test_a_chunk_without_them_is_written_as_before() -> None:
    assert unpack(blob(ramp()), KEY).stats is None
    assert b"stats" not in blob(ramp())
    assert parse_header(blob(ramp())).stats == ()


def header_of(tensors: list[tuple[str, str, list[int]]], metadata: dict[str, str]) -> BlobHeader:
    plain = [("token_ids", "I32", [2]), ("layer.0.keys", "BF16", [1, 2, 4]), ("layer.0.values", "BF16", [1, 2, 4])]
    fields = {
        "codec": "none", "chunk_key": KEY, "profile": PROFILE, "dtype": "BF16", "num_layers": "1", "num_kv_heads": "1",
        "num_tokens": "2", "head_dim": "4", "encode_seconds": "0.5", "checksum.token_ids": "0" * 32,
        "checksum.layer.0": "0" * 32,
    }  # fmt: skip
    return parse_header(build_header(fields | metadata, [*plain, *tensors]))


@pytest.mark.parametrize(
    ("tensors", "fields", "known"),
    [
        ([("layer.0.stats.attention", "F16", [1, 2, 2])], True, True),
        ([("layer.0.stats.new", "F16", [9]), ("layer.0.stats.attention", "F16", [1, 2, 2])], True, True),
        ([("layer.0.stats.attention", "F16", [1, 2, 2])], False, False),
        ([("layer.0.stats.attention", "F16", [1, 3, 2])], True, False),
        ([("layer.0.stats.attention", "F32", [1, 2, 2])], True, False),
        ([("layer.0.stats.new", "F16", [1, 2, 2])], True, False),
    ],
)
def test_only_what_is_known_and_can_be_checked_is_used(
    tensors: list[tuple[str, str, list[int]]], fields: bool, known: bool
) -> None:
    header = header_of(tensors, {"checksum.layer.0.stats": "1" * 32} if fields else {})
    assert bool(header.stats) == known
    if known:
        assert sum(header.stats[0]) == header.total_bytes


def test_one_layer_without_them_is_a_chunk_without_them() -> None:
    data = blob(measured(ramp()))
    odd = reseal(data, lambda header: header.replace(b"layer.1.stats.attention", b"layer.1.stats.attentive"))
    assert unpack(odd, KEY).stats is None
    assert same_bits(unpack(odd, KEY), ramp())


@pytest.mark.parametrize("codec", CODECS)
def test_stores_and_copies_carry_them(tmp_path: Path, codec: str) -> None:
    kv = measured(noise(2, 2, 6, 8))
    key = chunk_key(ENCODING, kv.token_ids)
    with KVStore(DiskStore(tmp_path), mac_key=SECRET) as one, KVStore(MemoryStore(), codec, SECRET) as two:
        one.put(key, kv, profile=ENCODING, encode_seconds=0.5)
        assert copy_store(one, two).left_out == []
        for store in (one, two):
            out = torch.empty_like(kv.keys), torch.empty_like(kv.values)
            for hit in (store.get(key, kv.token_ids), store.get(key, kv.token_ids, out=out)):
                assert hit is not None
                assert hit.kv.stats is not None
                assert torch.equal(hit.kv.stats, kv.stats)
            assert store.verify().damaged == []


def test_damaged_statistics_are_a_miss_that_heals() -> None:
    kv = measured(ramp())
    store, key = KVStore(MemoryStore()), chunk_key(ENCODING, kv.token_ids)
    store.put(key, kv, profile=ENCODING, encode_seconds=0.5)
    data = bytearray(store.blobs.get(key) or b"")
    data[-1] ^= 1
    store.blobs.put(key, bytes(data))
    assert store.get(key, kv.token_ids) is None
    assert store.contains([key]) == [False]
    assert store.put(key, kv, profile=ENCODING, encode_seconds=0.5) == len(data)


def test_they_are_a_small_part_of_a_blob() -> None:
    """Of heads of 64 numbers in bfloat16 they are 1 / 64 of the KV, and a few hundred bytes of header a layer."""
    kv = noise(30, 3, 256, 64)
    with_stats, without = len(blob(measured_small(kv))), len(blob(kv))
    assert 1.0 < with_stats / without < 1.02


def measured_small(kv: ChunkKV) -> ChunkKV:
    num_layers, num_kv_heads, num_tokens, _ = kv.keys.shape
    return ChunkKV(kv.keys, kv.values, kv.token_ids, torch.zeros(num_layers, num_kv_heads, 2, num_tokens).half())


@pytest.mark.parametrize(
    "stats",
    [
        torch.zeros(2, 2, 2, 3),
        torch.zeros(2, 2, 2, 4, dtype=torch.float16),
        torch.zeros(2, 2, 3, dtype=torch.float16),
        torch.zeros(2, 2, 2, 3, dtype=torch.float16, device="meta"),
    ],
)
def test_what_does_not_fit_is_refused(stats: torch.Tensor) -> None:
    kv = ramp()
    with pytest.raises(ValueError, match="stats: expected float16"):
        ChunkKV(kv.keys, kv.values, kv.token_ids, stats)


def test_a_chunk_counts_their_bytes() -> None:
    assert measured(ramp()).num_bytes == ramp().num_bytes + 2 * 2 * 2 * 3 * 2


def test_the_key_does_not_depend_on_them() -> None:
    assert chunk_key(ENCODING, measured(ramp()).token_ids) == chunk_key(ENCODING, ramp().token_ids) != ChunkKey(KEY)
