"""Blobs: what is packed reads back exactly, any tool opens it, and no flaw gets through."""

import json
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError
from epic_rag.kvstore.format import pack, read_layer, read_token_ids, unpack
from epic_rag.kvstore.header import build_header, describe, header_bytes, parse_header
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.tensors import ChunkKV

KEY = ChunkKey("0123456789abcdef" * 4)
PROFILE = "fedcba9876543210" * 4
GOLDEN = Path(__file__).parent / "data" / "kv-v1.safetensors"


def chunk(
    num_layers: int = 2, heads: int = 2, tokens: int = 3, dim: int = 4, dtype: torch.dtype = torch.bfloat16
) -> ChunkKV:
    numbers = torch.arange(2 * num_layers * heads * tokens * dim).reshape(2, num_layers, heads, tokens, dim)
    keys, values = (numbers / 8 - 5).to(dtype)
    return ChunkKV(keys, values, torch.arange(tokens, dtype=torch.int32) * 1000)


def blob(kv: ChunkKV) -> bytes:
    return b"".join(pack(KEY, kv, PROFILE, 0.25))


def same(one: ChunkKV, two: ChunkKV) -> bool:
    return (
        one.keys.dtype == two.keys.dtype
        and torch.equal(one.keys, two.keys)
        and torch.equal(one.values, two.values)
        and torch.equal(one.token_ids, two.token_ids)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 2, 3, 4), (30, 3, 7, 64), (3, 1, 257, 5)])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_what_is_packed_reads_back(dtype: torch.dtype, shape: tuple[int, int, int, int], kind: type) -> None:
    kv = chunk(*shape, dtype)
    assert same(unpack(kind(blob(kv)), KEY), kv)


def test_odd_numbers_survive_bit_by_bit() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    kv = ChunkKV(bits.reshape(1, 4, 256, 64), bits.flip(0).reshape(1, 4, 256, 64), torch.arange(256).int())
    back = unpack(blob(kv), KEY)
    assert torch.equal(back.keys.view(torch.int16), kv.keys.view(torch.int16))
    assert torch.equal(back.values.view(torch.int16), kv.values.view(torch.int16))


def test_tensors_of_any_layout_are_packed() -> None:
    kv = chunk()
    strided = ChunkKV(
        kv.keys.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(), kv.values.flip(0).flip(0), kv.token_ids
    )
    assert blob(strided) == blob(kv)


def test_packing_copies_nothing_and_unpacking_a_writable_buffer_neither() -> None:
    kv = chunk()
    buffers = pack(KEY, kv, PROFILE, 0.25)
    kv.values[1] = 7.0
    assert memoryview(buffers[-1])[-2:] == struct.pack("<f", 7.0)[2:]
    buffer = bytearray(blob(chunk()))
    back = unpack(buffer, KEY)
    buffer[-2:] = struct.pack("<f", 7.0)[2:]
    assert back.values[-1, -1, -1, -1] == 7.0
    assert back.keys[1].is_contiguous()


def test_unpacking_read_only_bytes_leaves_them_alone() -> None:
    data = blob(chunk())
    back = unpack(data, KEY)
    back.keys.zero_()
    assert same(unpack(data, KEY), chunk())


def test_any_safetensors_tool_opens_it(tmp_path: Path) -> None:
    kv = chunk(num_layers=12)
    path = tmp_path / "x.safetensors"
    path.write_bytes(blob(kv))
    tensors = safetensors.torch.load_file(path)
    assert len(tensors) == 25
    assert torch.equal(tensors["token_ids"], kv.token_ids)
    assert torch.equal(tensors["layer.11.keys"], kv.keys[11])
    assert torch.equal(tensors["layer.2.values"], kv.values[2])
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert {name: metadata[name] for name in ("format", "format_version", "codec", "chunk_key", "profile")} == {
        "format": "epic-rag-kv",
        "format_version": "1",
        "codec": "none",
        "chunk_key": KEY,
        "profile": PROFILE,
    }


def test_the_header_says_what_is_where() -> None:
    kv = chunk(num_layers=5)
    data = bytearray(blob(kv))
    assert header_bytes(data[:8]) % 64 == 0
    header = parse_header(data[: header_bytes(data[:8])])
    assert (header.shape, header.dtype, header.encode_seconds) == ((5, 2, 3, 4), "BF16", 0.25)
    assert (header.total_bytes, header.token_ids.start) == (len(data), header_bytes(data))
    view = memoryview(data)
    start, length = header.token_ids
    assert torch.equal(read_token_ids(header, view[start : start + length]), kv.token_ids)
    for index, (start, length) in enumerate(header.layers):
        keys, values = read_layer(header, index, view[start : start + length])
        assert torch.equal(keys, kv.keys[index])
        assert torch.equal(values, kv.values[index])
        with pytest.raises(StoreFormatError, match=f"layer {index}"):
            read_layer(header, index, view[start : start + length - 1])
        with pytest.raises(StoreFormatError, match=f"layer {index}"):
            read_layer(header, index, view[start + 1 : start + 1 + length])
    with pytest.raises(StoreFormatError, match="token ids"):
        read_token_ids(header, view[:4])


def test_every_flipped_byte_is_found() -> None:
    data = bytearray(blob(chunk()))
    for index in range(len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            data[index] ^= mask
            with pytest.raises(StoreFormatError):
                unpack(data, KEY)
            data[index] ^= mask
    assert same(unpack(data, KEY), chunk())


def test_every_truncation_and_extension_is_found() -> None:
    data = blob(chunk())
    for length in range(len(data)):
        with pytest.raises(StoreFormatError):
            unpack(data[:length], KEY)
    for more in (b"\0", b" " * 64, data):
        with pytest.raises(StoreFormatError, match="the header says"):
            unpack(data + more, KEY)


@pytest.mark.parametrize("length", [0, 1, 7, 2**16, 2**24, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 2**64 - 8])
def test_impossible_header_lengths_are_found(length: int) -> None:
    data = struct.pack("<Q", length) + blob(chunk())[8:]
    with pytest.raises(StoreFormatError):
        unpack(data, KEY)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_rubbish_is_refused(rubbish: bytes, at: int) -> None:
    data = blob(chunk())
    with pytest.raises(StoreFormatError):
        unpack(rubbish, KEY)
    changed = data[:at] + rubbish + data[at + len(rubbish) :]
    if changed != data:
        with pytest.raises(StoreFormatError):
            unpack(changed, KEY)


def test_the_kv_of_another_chunk_is_refused() -> None:
    with pytest.raises(StoreFormatError, match="expected ffff"):
        unpack(blob(chunk()), ChunkKey("f" * 64))


METADATA = {
    "codec": "none",
    "chunk_key": KEY,
    "profile": PROFILE,
    "dtype": "BF16",
    "num_layers": "1",
    "num_kv_heads": "1",
    "num_tokens": "2",
    "head_dim": "4",
    "encode_seconds": "0.5",
    "checksum.token_ids": "0" * 32,
    "checksum.layer.0": "0" * 32,
}
TENSORS = [("token_ids", "I32", [2]), ("layer.0.keys", "BF16", [1, 2, 4]), ("layer.0.values", "BF16", [1, 2, 4])]


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        ({"num_layers": "2"}, TENSORS),
        ({"num_layers": "0"}, TENSORS[:1]),
        ({"num_layers": "-1"}, TENSORS),
        ({"num_layers": "x"}, TENSORS),
        ({"num_tokens": "3"}, TENSORS),
        ({"head_dim": "999999999999999999"}, TENSORS),
        ({"dtype": "I8"}, TENSORS),
        ({"dtype": "F16"}, TENSORS),
        ({"encode_seconds": "nan"}, TENSORS),
        ({"encode_seconds": "-1"}, TENSORS),
        ({"encode_seconds": ""}, TENSORS),
        ({}, TENSORS[:2]),
        ({}, TENSORS[1:]),
        ({}, [*TENSORS, ("layer.0.more", "F16", [1])]),
        ({}, [*TENSORS, ("layer.0.stats.x", "F16", [-1])]),
        ({}, [*TENSORS, ("layer.0.stats.x", "F32", [-2, -1])]),
        ({"num_layers": "999999999999"}, TENSORS),
        ({}, [*TENSORS[:2], ("layer.0.stats.x", "F16", [8]), TENSORS[2]]),
        ({"dtype": "F32"}, [TENSORS[0], *((n, "F32", s) for n, _, s in TENSORS[1:]), ("layer.0.stats.x", "F16", [1])]),
        ({}, [TENSORS[0], TENSORS[2], TENSORS[1]]),
    ],
)
def test_a_sealed_header_that_describes_no_chunk_is_refused(
    metadata: dict[str, str], tensors: list[tuple[str, str, list[int]]]
) -> None:
    header = build_header(METADATA | metadata, tensors)
    with pytest.raises(StoreFormatError, match="header: malformed"):
        parse_header(header)
    assert describe(header).profile == ""


def test_statistics_behind_a_layer_are_passed_over() -> None:
    tensors = [*TENSORS, ("layer.0.stats.var", "F16", [2, 3]), ("layer.0.stats.top", "F16", [2])]
    header = parse_header(build_header(METADATA, tensors))
    assert header.layers[0].length == 2 * 16 + 16
    assert header.plane_bytes == 16


@pytest.mark.parametrize("field", ["format_version", "codec"])
def test_another_version_or_codec_is_refused_with_the_mend(field: str) -> None:
    header = build_header(METADATA | {field: "lz9"}, TENSORS)
    with pytest.raises(StoreVersionError, match=r"'lz9'.*use the version that wrote the store, or ingest again"):
        parse_header(header)


def test_another_format_is_refused() -> None:
    with pytest.raises(StoreFormatError, match="'other'"):
        parse_header(build_header(METADATA | {"format": "other"}, TENSORS))
    other = safetensors.torch.save({"x": torch.zeros(100)}, {"format": "pt"})
    with pytest.raises(StoreFormatError):
        parse_header(other)


def test_the_golden_file_is_what_the_specification_says() -> None:
    """Read with nothing but docs/kv-format.md in hand."""
    data = GOLDEN.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:start])
    assert start % 64 == 0
    opening = b'{"__metadata__":{"header_checksum":"'
    seal = slice(8 + len(opening), 8 + len(opening) + 32)
    assert data[8:].startswith(opening)
    assert data[seal.stop :].startswith(b'","format":"epic-rag-kv","format_version":"1"')
    unsealed = data[: seal.start] + b"0" * 32 + data[seal.stop : start]
    assert data[seal].decode() == xxhash.xxh3_128_hexdigest(unsealed)
    metadata = table.pop("__metadata__")
    plane = 2 * 3 * 4 * 2
    assert list(table) == ["token_ids", "layer.0.keys", "layer.0.values", "layer.1.keys", "layer.1.values"]
    assert table["layer.1.keys"] == {
        "dtype": "BF16",
        "shape": [2, 3, 4],
        "data_offsets": [12 + 2 * plane, 12 + 3 * plane],
    }
    assert metadata["checksum.token_ids"] == xxhash.xxh3_128_hexdigest(data[start : start + 12])
    layer = data[start + 12 + 2 * plane :]
    assert metadata["checksum.layer.1"] == xxhash.xxh3_128_hexdigest(layer)
    assert len(layer) == 2 * plane
    assert struct.unpack("<3i", data[start : start + 12]) == (0, 1000, 2000)


def test_the_golden_file_reads_and_is_written_the_same() -> None:
    """A blob of version 1, kept for ever: a later version reads it, or refuses it with the mend."""
    data = GOLDEN.read_bytes()
    assert same(unpack(data, KEY), chunk())
    assert blob(chunk()) == data
    assert describe(data).tokens == 3
