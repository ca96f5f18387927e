"""Every codec gives back what was put, as exactly as it promises, and can be read layer by layer."""

import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_chunks import KEY, PROFILE, SECRET, noise, ramp, same_bits

from epic_rag.kvstore.codecs import CODECS, find_codec
from epic_rag.kvstore.errors import StoreVersionError, StoreWriteError
from epic_rag.kvstore.filling import unpack_into
from epic_rag.kvstore.format import check, pack, read_layer, unpack
from epic_rag.kvstore.header import describe, parse_header
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.openblob import ViewBlob
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV

LOSSLESS = ("none", "lz4", "zstd")
LOSSY = ("int8", "int8+lz4")
DATA = Path(__file__).parent / "data"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((1, 1, 1, 1), (2, 2, 3, 4), (3, 1, 257, 5), (4, 3, 64, 64))


def blob(kv: ChunkKV, codec: str) -> bytes:
    return b"".join(pack(KEY, kv, PROFILE, 0.25, codec))


def worst_error(kv: ChunkKV, back: ChunkKV) -> float:
    """The largest error in halves of a quantisation step, rounding to the dtype taken off; 1 is what int8 promises."""
    rounding = torch.finfo(kv.keys.dtype).eps
    worst = 0.0
    for one, two, dim in ((kv.keys, back.keys, 2), (kv.values, back.values, 3)):
        one, two = one.double(), two.double()
        half_step = (one.abs().amax(dim, keepdim=True) / 127).clamp_min(2.0**-126) / 2
        worst = max(worst, float((((one - two).abs() - two.abs() * rounding) / half_step).max()))
    return worst


def test_the_codecs_are_those_of_the_specification() -> None:
    assert set(CODECS) == {*LOSSLESS, *LOSSY}
    assert [name for name in CODECS if find_codec(name).name != name] == []
    with pytest.raises(ValueError, match="'lz9' is unknown: expected one of none, lz4, zstd, int8"):
        find_codec("lz9")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", LOSSLESS)
def test_lossless_codecs_give_back_every_bit(codec: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    kv = noise(*shape, dtype)
    for kind in (bytes, bytearray):
        assert same_bits(unpack(kind(blob(kv, codec)), KEY), kv)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_lossless_codecs_keep_odd_numbers(codec: str) -> None:
    """Every bit pattern of 16 bits: NaN of all kinds, infinity, denormal numbers, both zeros."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        numbers = bits.view(dtype).reshape(1, 4, 256, 64)
        kv = ChunkKV(numbers, numbers.flip(1), torch.arange(256).int())
        assert same_bits(unpack(blob(kv, codec), KEY), kv)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", LOSSY)
def test_int8_is_never_off_by_more_than_half_a_step(
    codec: str, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    kv = noise(*shape, dtype)
    back = unpack(blob(kv, codec), KEY)
    assert back.keys.dtype == dtype
    assert torch.equal(back.token_ids, kv.token_ids)
    assert worst_error(kv, back) <= 1.00001


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=12, max_size=12))
def test_int8_holds_any_finite_numbers(numbers: list[float]) -> None:
    plane = torch.tensor(numbers).reshape(1, 1, 3, 4)
    kv = ChunkKV(plane, plane.flip(3), torch.arange(3).int())
    assert worst_error(kv, unpack(blob(kv, "int8"), KEY)) <= 1.00001


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("codec", LOSSY)
def test_int8_refuses_what_it_cannot_hold(codec: str, number: float) -> None:
    kv = noise()
    kv.values[1, 1, 2, 3] = number
    with pytest.raises(StoreWriteError, match=r"cannot hold NaN or infinity.*use codec 'none' or 'lz4'"):
        blob(kv, codec)


def test_encoding_changes_nothing_in_the_kv() -> None:
    for dtype in DTYPES:
        for codec in CODECS:
            kv = noise(dtype=dtype)
            blob(kv, codec)
            assert same_bits(kv, noise(dtype=dtype)), codec


@pytest.mark.parametrize("codec", CODECS)
def test_tensors_of_any_layout_are_packed(codec: str) -> None:
    kv = noise(2, 3, 5, 8)
    keys = kv.keys.transpose(1, 2).contiguous().transpose(1, 2)
    values = torch.cat([kv.values, kv.values], 3)[..., :8]
    assert blob(ChunkKV(keys, values, kv.token_ids), codec) == blob(kv, codec)


def test_compressed_is_smaller_where_that_pays_and_never_larger() -> None:
    even = ChunkKV(torch.zeros(1, 2, 64, 64), torch.ones(1, 2, 64, 64), torch.arange(64).int())
    bits = torch.randint(-(2**31), 2**31, (2, 1, 2, 64, 64), dtype=torch.int64).to(torch.int32).view(torch.float32)
    wild = ChunkKV(bits[0], bits[1], torch.arange(64).int())
    for codec in ("lz4", "zstd"):
        assert len(blob(even, codec)) < 0.8 * len(blob(even, "none"))
        assert parse_header(blob(wild, codec)).layers[0].length <= parse_header(blob(wild, "none")).layers[0].length
    assert len(blob(even, "int8+lz4")) < 0.2 * len(blob(even, "int8"))
    assert len(blob(even, "int8")) < 0.3 * len(blob(even, "none"))


@pytest.mark.parametrize("codec", CODECS)
def test_each_layer_is_read_by_range(codec: str) -> None:
    kv = noise(5, 3, 16, 8)
    data = memoryview(blob(kv, codec))
    header, whole = parse_header(data), unpack(data, KEY)
    assert (header.codec, header.total_bytes, describe(data).tokens) == (codec, len(data), 16)
    assert check(data, KEY) == header
    for index, (start, length) in enumerate(header.layers):
        out = torch.empty(2, 3, 16, 8, dtype=torch.bfloat16)
        for one in (None, (out[0], out[1])):
            keys, values = read_layer(header, index, data[start : start + length], one)
            assert torch.equal(keys, whole.keys[index])
            assert torch.equal(values, whole.values[index])
        assert torch.equal(out[0], whole.keys[index])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_slice_of_longer_tensors_is_filled_and_nothing_else(codec: str, dtype: torch.dtype) -> None:
    kv = noise(2, 3, 16, 8, dtype)
    data = blob(kv, codec)
    keys, values = torch.full((2, 2, 3, 40, 8), 7.0, dtype=dtype)
    back = unpack_into(ViewBlob(memoryview(data)), KEY, (keys[:, :, 10:26], values[:, :, 10:26]))
    assert same_bits(unpack(data, KEY), ChunkKV(back.keys.contiguous(), back.values.contiguous(), back.token_ids))
    assert back.keys.data_ptr() == keys[:, :, 10:26].data_ptr()
    for whole in (keys, values):
        assert torch.equal(torch.cat([whole[:, :, :10], whole[:, :, 26:]], 2), torch.full((2, 3, 24, 8), 7.0).to(dtype))


def test_wrong_places_to_fill_are_refused() -> None:
    data = blob(noise(), "none")
    good = torch.empty(2, 2, 3, 4, dtype=torch.bfloat16)
    for bad in (good[:1], good.half(), torch.empty(2, 2, 4, 3, dtype=torch.bfloat16).transpose(2, 3)):
        with pytest.raises(ValueError, match=r"out, values: expected \[2, 2, 3, 4\] torch.bfloat16"):
            unpack_into(ViewBlob(memoryview(data)), KEY, (good, bad))
    header = parse_header(data)
    start, length = header.layers[0]
    with pytest.raises(ValueError, match="out, keys"):
        read_layer(header, 0, memoryview(data)[start : start + length], (good, good))


@pytest.mark.parametrize("codec", CODECS)
def test_any_safetensors_tool_opens_it(codec: str, tmp_path: Path) -> None:
    kv = noise(2, 2, 16, 8)
    path = tmp_path / "x.safetensors"
    path.write_bytes(blob(kv, codec))
    tensors = safetensors.torch.load_file(path)
    assert torch.equal(tensors["token_ids"], kv.token_ids)
    if codec == "int8":
        keys = tensors["layer.1.keys"] * tensors["layer.1.key_scales"][:, None]
        values = tensors["layer.1.values"] * tensors["layer.1.value_scales"][..., None]
        back = unpack(path.read_bytes(), KEY)
        assert torch.equal(back.keys[1], keys.bfloat16())
        assert torch.equal(back.values[1], values.bfloat16())


@pytest.mark.parametrize("codec", CODECS)
def test_a_store_writes_its_codec_and_reads_every_other(codec: str) -> None:
    profile = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "none", ())
    blobs, kv = MemoryStore(), noise()
    key = chunk_key(profile, kv.token_ids)
    KVStore(blobs, codec).put(key, kv, profile=profile, encode_seconds=0.5)
    assert parse_header(blobs.get(key) or b"").codec == codec
    out = torch.empty(2, 2, 2, 3, 4, dtype=torch.bfloat16)
    for other in CODECS:
        plain, filled = (KVStore(blobs, other).get(key, kv.token_ids, out=one) for one in (None, (out[0], out[1])))
        assert plain is not None
        assert filled is not None
        assert torch.equal(plain.kv.keys, filled.kv.keys)
        assert torch.equal(out[1], filled.kv.values)


@pytest.mark.parametrize(("codec", "module"), [("lz4", "lz4.block"), ("int8+lz4", "lz4.block"), ("zstd", "zstandard")])
def test_a_missing_package_is_said_in_words_and_costs_no_blob(
    codec: str, module: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile = EncodingProfile("model", "name", "bfloat16", "{}", "tokenizer", "none", ())
    dtype, ids = torch.bfloat16, torch.arange(64).int()
    kv = ChunkKV(torch.zeros(1, 1, 64, 64, dtype=dtype), torch.zeros(1, 1, 64, 64, dtype=dtype), ids)
    key, store = chunk_key(profile, ids), KVStore(MemoryStore(), codec)
    store.put(key, kv, profile=profile, encode_seconds=0.5)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        with pytest.raises(StoreVersionError, match=r"not installed: pip install 'epic-rag\[codecs\]'"):
            KVStore(MemoryStore(), codec)
        assert store.get(key, ids) is None
        assert "epic-rag[codecs]" in caplog.text
        assert store.verify().damaged == [], "checksums need no package"
    assert store.get(key, ids) is not None
    assert store.stats().damaged == 0


def golden(codec: str) -> Path:
    return DATA / f"kv-v1-{codec.replace('+', '-')}.safetensors"


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_the_golden_files_read(codec: str) -> None:
    """Blobs of version 1, kept for ever: a later version reads them, or refuses them with the mend."""
    data, kv = golden(codec).read_bytes(), ramp(2, 2, 16, 8)
    header, back = parse_header(data), unpack(data, KEY)
    assert (header.codec, header.encode_seconds, header.profile_digest) == (codec, 0.25, PROFILE)
    if codec in LOSSLESS:
        assert same_bits(back, kv)
    assert worst_error(kv, back) <= 1.00001
    if "lz4" in codec or codec == "zstd":
        parts = CODECS[codec].parts("BF16", (2, 16, 8))
        sizes = header.part_lengths[0]
        assert any(part.packed and size < part.num_bytes for part, size in zip(parts, sizes, strict=True))
    if codec == "int8":
        assert blob(kv, codec) == data


def test_the_golden_file_with_a_mac_reads_and_is_written_the_same() -> None:
    data, authenticator = (DATA / "kv-v1-mac.safetensors").read_bytes(), Authenticator(SECRET)
    assert same_bits(unpack(data, KEY, authenticator=authenticator), ramp())
    assert same_bits(unpack(data, KEY), ramp()), "who has no key reads it too"
    assert b"".join(pack(KEY, ramp(), PROFILE, 0.25, "none", authenticator)) == data
