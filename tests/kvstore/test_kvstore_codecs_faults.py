"""No flaw gets through any codec, with a MAC or without: a miss, never wrong KV, never a crash."""

import struct

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_chunks import KEY, PROFILE, SECRET, noise, ramp, reseal

from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.codecs_compress import Lz4, Zstd
from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError
from epic_rag.kvstore.filling import unpack_into
from epic_rag.kvstore.format import check, pack, unpack
from epic_rag.kvstore.header import build_header, parse_header
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.openblob import ViewBlob
from epic_rag.kvstore.tensors import ChunkKV

WITH_AND_WITHOUT = [None, Authenticator(SECRET)]


def blob(kv: ChunkKV, codec: str, authenticator: Authenticator | None = None) -> bytearray:
    return bytearray(b"".join(pack(KEY, kv, PROFILE, 0.25, codec, authenticator)))


def small() -> ChunkKV:
    """A chunk of one layer that every compressor makes smaller."""
    kv = ramp(1, 1, 32, 4)
    return ChunkKV(kv.keys.abs(), kv.values.abs(), kv.token_ids)


def places() -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors that `small` fits into."""
    keys, values = torch.empty(2, 1, 1, 32, 4, dtype=torch.bfloat16)
    return keys, values


@pytest.mark.parametrize("authenticator", WITH_AND_WITHOUT, ids=["no key", "key"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_byte_is_found(codec: str, authenticator: Authenticator | None) -> None:
    data, out = blob(small(), codec, authenticator), places()
    flips = 0
    for index in range(len(data)):
        for mask in (0x01, 0x80):
            data[index] ^= mask
            with pytest.raises(StoreFormatError):
                unpack(data, KEY, authenticator=authenticator)
            with pytest.raises(StoreFormatError):
                check(data, KEY, authenticator)
            with pytest.raises(StoreFormatError):
                unpack_into(ViewBlob(memoryview(data)), KEY, out, authenticator)
            data[index] ^= mask
            flips += 1
    print(f"{codec}: {flips} flips in {len(data)} bytes, each found")
    unpack(data, KEY, authenticator=authenticator)


@pytest.mark.parametrize("authenticator", WITH_AND_WITHOUT, ids=["no key", "key"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_and_extension_is_found(codec: str, authenticator: Authenticator | None) -> None:
    data = bytes(blob(small(), codec, authenticator))
    cut = [data[:length] for length in range(len(data))]
    for wrong in (*cut, data + b"\0", data + data):
        with pytest.raises(StoreFormatError):
            unpack(wrong, KEY, authenticator=authenticator)
        with pytest.raises(StoreFormatError):
            check(wrong, KEY, authenticator)
        with pytest.raises(StoreFormatError):
            unpack_into(ViewBlob(memoryview(wrong)), KEY, places(), authenticator)
    print(f"{codec}: {len(cut)} truncations, each found")


def forge(codec: str, layer: list[tuple[str, str, list[int], bytes]], **metadata: str) -> bytes:
    """A blob with good checksums around parts of any bytes; T is 2."""
    token_ids = struct.pack("<2i", 0, 1)
    fields = {
        "codec": codec,
        "chunk_key": KEY,
        "profile": PROFILE,
        "dtype": "BF16",
        "num_layers": "1",
        "num_kv_heads": "1",
        "num_tokens": "2",
        "head_dim": "64",
        "encode_seconds": "0.5",
        "checksum.token_ids": xxhash.xxh3_128_hexdigest(token_ids),
        "checksum.layer.0": xxhash.xxh3_128_hexdigest(b"".join(data for *_, data in layer)),
        **metadata,
    }
    tensors = [("token_ids", "I32", [2]), *((f"layer.0.{name}", dtype, shape) for name, dtype, shape, _ in layer)]
    return b"".join([build_header(fields, tensors), token_ids, *(data for *_, data in layer)])


def planes(high: bytes) -> list[tuple[str, str, list[int], bytes]]:
    return [("high", "U8", [len(high)], high), ("low", "U8", [2, 1, 2, 64, 1], bytes(256))]


def test_what_is_forged_below_is_otherwise_good() -> None:
    packed = Lz4().compress(memoryview(bytes(256)))
    for codec, high in (("lz4", bytes(256)), ("lz4", packed), ("zstd", Zstd().compress(memoryview(bytes(256))))):
        assert unpack(forge(codec, planes(high)), KEY).keys.eq(0).all()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("length", [1, 5, 100, 255])
def test_packed_rubbish_with_good_checksums_is_a_format_error(codec: str, length: int) -> None:
    for filling in (b"\x00", b"\xff", b"\x1f", b"\x28\xb5\x2f\xfd\xa0"):
        high = (filling * length)[:length]
        data = forge(codec, planes(high))
        check(data, KEY)
        with pytest.raises(StoreFormatError, match=codec):
            unpack(data, KEY)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=255))
def test_any_packed_bytes_give_an_error_or_kv_of_the_right_shape(rubbish: bytes) -> None:
    for codec in ("lz4", "zstd"):
        try:
            assert unpack(forge(codec, planes(rubbish)), KEY).keys.shape == (1, 1, 2, 64)
        except StoreFormatError:
            continue


def test_a_frame_that_claims_another_length_is_refused_before_it_is_unpacked() -> None:
    zeros = memoryview(bytes(1 << 20))
    for codec, compressor in (("zstd", Zstd()), ("lz4", Lz4())):
        packed = compressor.compress(zeros)[:255]
        with pytest.raises(StoreFormatError, match=codec):
            unpack(forge(codec, planes(packed)), KEY)
    whole = Zstd().compress(zeros)
    assert len(whole) < 256, "a bomb: a thousand times its bytes"
    with pytest.raises(StoreFormatError, match="1048576 bytes, expected 256"):
        unpack(forge("zstd", planes(whole)), KEY)
    extra = Zstd().compress(memoryview(bytes(256))) + b"more"
    with pytest.raises(StoreFormatError, match="zstd"):
        unpack(forge("zstd", planes(extra)), KEY)


INT8 = [
    ("key_scales", "F32", [1, 64], bytes(256)),
    ("value_scales", "F32", [1, 2], bytes(8)),
    ("keys", "U8", [100], bytes(100)),
    ("values", "U8", [100], bytes(100)),
]


@pytest.mark.parametrize(
    ("codec", "layer", "metadata"),
    [
        ("lz4", planes(bytes(257)), {}),
        ("lz4", planes(b""), {}),
        ("lz4", planes(bytes(9))[:1], {}),
        ("lz4", planes(bytes(9))[::-1], {}),
        ("lz4", [*planes(bytes(9)), ("more", "U8", [1], b"x")], {}),
        ("lz4", planes(bytes(9)), {"dtype": "F32"}),
        ("lz4", planes(bytes(9)), {"head_dim": "1000000000000"}),
        ("lz4", planes(bytes(9)), {"dtype": "U8"}),
        ("int8", INT8, {}),
        ("int8+lz4", INT8[:3], {}),
        ("int8+lz4", INT8, {"num_kv_heads": "2"}),
        ("int8+lz4", [INT8[0], INT8[1], ("stats.x", "F16", [1], b"xx"), *INT8[2:]], {}),
        ("none", planes(bytes(9)), {}),
    ],
)
def test_a_sealed_header_that_describes_no_chunk_of_its_codec_is_refused(
    codec: str, layer: list[tuple[str, str, list[int], bytes]], metadata: dict[str, str]
) -> None:
    with pytest.raises(StoreFormatError, match="header: malformed"):
        parse_header(forge(codec, layer, **metadata))


def test_a_header_cannot_ask_for_more_memory_than_its_blob_warrants() -> None:
    """int8+lz4 alone stores nothing plainly but its scales: KV of 2 tokens and very many channels."""
    for head_dim in (1 << 14, 1 << 40):
        scales = bytes(4 * head_dim if head_dim < 1 << 20 else 8)
        layer = [
            ("key_scales", "F32", [1, head_dim], scales),
            ("value_scales", "F32", [1, 2], bytes(8)),
            ("keys", "U8", [9], bytes(9)),
            ("values", "U8", [9], bytes(9)),
        ]
        if head_dim < 1 << 20:
            assert parse_header(forge("int8+lz4", layer, head_dim=str(head_dim))).plane_bytes == 4 * head_dim
        else:
            layer[0] = ("key_scales", "F32", [1, 2], scales)
            with pytest.raises(StoreFormatError, match="malformed"):
                parse_header(forge("int8+lz4", layer, head_dim=str(head_dim)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[32]', b'"shape":32'),
        (b'"shape":[32]', b'"shape":3e1'),
        (b'"shape":[2,1,32,4,1]', b'"shape":[2,1,32,4,true]'),
        (b'"shape":[2,1,32,4,1]', b'"shape":[2,1,32,4,1.0]'),
        (b'"encode_seconds":"0.25"', b'"encode_seconds":[0.25]'),
        (b'"profile":"fedcba', b'"profile":7,"x":"'),
        (b'"U8"', b"null"),
        (b'"I32"', b'"I33"'),
        (b'"data_offsets":[0,128]', b'"data_offsets":[0,-12]'),
    ],
)
def test_a_sealed_header_of_other_json_types_is_refused(old: bytes, new: bytes) -> None:
    data = bytes(blob(small(), "lz4"))

    def change(header: bytes) -> bytes:
        assert header.count(old) >= 1
        return header.rstrip(b" ").replace(old, new, 1).ljust(len(header))

    with pytest.raises(StoreFormatError, match="malformed"):
        parse_header(reseal(data, change))


@pytest.mark.parametrize("authenticator", WITH_AND_WITHOUT, ids=["no key", "key"])
def test_another_codec_is_refused_with_the_mend(authenticator: Authenticator | None) -> None:
    header = build_header({"codec": "lz9"}, [], authenticator)
    with pytest.raises(StoreVersionError, match=r"'lz9'.*reads 'none', 'lz4'.*use the version that wrote the store"):
        parse_header(header, authenticator)


def test_a_damaged_blob_may_leave_anything_in_the_tensors_but_is_never_returned() -> None:
    data = blob(noise(3), "int8")
    data[-1] ^= 1
    out = torch.zeros(2, 3, 2, 3, 4, dtype=torch.bfloat16)
    with pytest.raises(StoreFormatError, match="layer 2: checksum"):
        unpack_into(ViewBlob(memoryview(data)), KEY, (out[0], out[1]))
    assert out[0, 2].eq(0).all(), "a layer is checked before it is decoded"
