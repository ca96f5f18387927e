"""The header of a blob: the JSON in front of the tensors, sealed by its own checksum (docs/kv-format.md)."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

import xxhash

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.blobstore import BlobNote
from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError
from epic_rag.kvstore.keys import FORMAT_VERSION

FORMAT_NAME = "epic-rag-kv"
CODEC_NONE = "none"
LENGTH_BYTES = 8
ALIGNMENT_BYTES = 64
MAX_HEADER_BYTES = 16 << 20
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4}

# The seal stands first in every version, so that any reader can check it before it trusts the JSON behind it.
_SEAL_START = b'{"__metadata__":{"header_checksum":"'
_SEAL_AT = LENGTH_BYTES + len(_SEAL_START)
_NO_SEAL = b"0" * 32


class ByteRange(NamedTuple):
    """A run of bytes of a blob, counted from the blob's first byte."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """What a blob's header says; every size and range in it has been checked.

    Attributes:
        chunk_key: the key the blob was stored under.
        profile_digest: digest of its encoding profile.
        dtype: "BF16", "F16" or "F32".
        shape: L, H, T, D.
        encode_seconds: what it cost to make.
        token_ids: where the token ids lie.
        layers: where each layer lies: its keys [H, T, D], its values [H, T, D], then any statistics.
        token_checksum: xxh3_128 of the token ids.
        layer_checksums: xxh3_128 of each layer's keys and values.
    """

    chunk_key: str
    profile_digest: str
    dtype: str
    shape: tuple[int, int, int, int]
    encode_seconds: float
    token_ids: ByteRange
    layers: tuple[ByteRange, ...]
    token_checksum: str
    layer_checksums: tuple[str, ...]
    data_start: int = field(repr=False)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one layer's keys, and of its values: H * T * D items."""
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole blob."""
        return sum(self.layers[-1])


def header_bytes(buffer: Buffer) -> int:
    """Return how many bytes the header takes, its length field included, from a blob's first 8 bytes.

    Raises:
        StoreFormatError: fewer than 8 bytes, or a length that no header has.
    """
    if len(buffer) < LENGTH_BYTES:
        raise StoreFormatError(f"truncated: {len(buffer)} bytes, a blob has at least {LENGTH_BYTES}")
    (length,) = struct.unpack_from("<Q", buffer)
    if not len(_SEAL_START) < length <= MAX_HEADER_BYTES or (LENGTH_BYTES + length) % ALIGNMENT_BYTES:
        raise StoreFormatError(f"impossible header length {length}")
    return LENGTH_BYTES + int(length)


def build_header(metadata: Mapping[str, str], tensors: Sequence[tuple[str, str, list[int]]]) -> bytes:
    """Write and seal a header.

    Args:
        metadata: the blob's fields; the seal and the format's name and version are put in front of them.
        tensors: (name, safetensors dtype, shape) in the order of their bytes.
    """
    fields = {"header_checksum": _NO_SEAL.decode(), "format": FORMAT_NAME, "format_version": str(FORMAT_VERSION)}
    table: dict[str, object] = {"__metadata__": {**fields, **metadata}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    header = struct.pack("<Q", len(text)) + text
    return header[:_SEAL_AT] + _seal(header) + header[_SEAL_AT + len(_NO_SEAL) :]


def parse_header(buffer: Buffer) -> BlobHeader:
    """Read the header from the first bytes of a blob.

    Raises:
        StoreFormatError: the header is damaged, or describes something else than one chunk's KV.
        StoreVersionError: the header is intact, but of a version or codec that this program does not know.
    """
    end = header_bytes(buffer)
    if len(buffer) < end:
        raise StoreFormatError(f"truncated: {len(buffer)} bytes, the header alone has {end}")
    raw = bytes(memoryview(buffer)[:end])
    if not raw.startswith(_SEAL_START, LENGTH_BYTES):
        raise StoreFormatError(f"not a {FORMAT_NAME} blob: no header checksum where one must stand")
    if raw[_SEAL_AT : _SEAL_AT + len(_NO_SEAL)] != _seal(raw):
        raise StoreFormatError("header: checksum does not match")
    try:
        table = json.loads(raw[LENGTH_BYTES:])
        metadata = table.pop("__metadata__")
        _check_version(metadata)
        return _interpret(metadata, table, end)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise StoreFormatError(f"header: malformed ({type(error).__name__}: {error})") from error


def describe(buffer: Buffer) -> BlobNote:
    """Return what a tier's bookkeeping keeps about a blob; an empty note for bytes that are no blob."""
    try:
        header = parse_header(buffer)
    except StoreFormatError:
        return BlobNote()
    return BlobNote(header.profile_digest, header.shape[2], header.encode_seconds)


def _seal(header: bytes) -> bytes:
    unsealed = header[:_SEAL_AT] + _NO_SEAL + header[_SEAL_AT + len(_NO_SEAL) :]
    return xxhash.xxh3_128_hexdigest(unsealed).encode("ascii")


def _check_version(metadata: Mapping[str, str]) -> None:
    if metadata["format"] != FORMAT_NAME:
        raise StoreFormatError(f"header: format {metadata['format']!r}, expected {FORMAT_NAME!r}")
    for name, known in (("format_version", str(FORMAT_VERSION)), ("codec", CODEC_NONE)):
        if metadata[name] != known:
            raise StoreVersionError(
                f"{name} {metadata[name]!r}, this version of epic-rag reads {known!r}: "
                "use the version that wrote the store, or ingest again into a new store"
            )


def _interpret(metadata: Mapping[str, str], table: Mapping[str, object], data_start: int) -> BlobHeader:
    shape = tuple(int(metadata[name]) for name in ("num_layers", "num_kv_heads", "num_tokens", "head_dim"))
    num_layers, num_kv_heads, num_tokens, head_dim = shape
    if min(shape) < 1:
        raise ValueError(f"shape {list(shape)}")
    dtype = metadata["dtype"]
    ITEM_BYTES[dtype]
    encode_seconds = float(metadata["encode_seconds"])
    if not 0 <= encode_seconds < inf:
        raise ValueError(f"encode_seconds {encode_seconds}")
    starts, end = _layout(table, num_layers, dtype, [num_kv_heads, num_tokens, head_dim])
    edges = [data_start + offset for offset in (*starts, end)]
    layers = tuple(ByteRange(start, stop - start) for start, stop in pairwise(edges))
    if len({layer.length for layer in layers}) != 1 or layers[0].length % ITEM_BYTES[dtype]:
        raise ValueError("layers of different lengths")
    return BlobHeader(
        chunk_key=metadata["chunk_key"],
        profile_digest=metadata["profile"],
        dtype=dtype,
        shape=(num_layers, num_kv_heads, num_tokens, head_dim),
        encode_seconds=encode_seconds,
        token_ids=ByteRange(data_start, 4 * num_tokens),
        layers=layers,
        token_checksum=metadata["checksum.token_ids"],
        layer_checksums=tuple(metadata[f"checksum.layer.{i}"] for i in range(num_layers)),
        data_start=data_start,
    )


def _layout(table: Mapping[str, object], num_layers: int, dtype: str, plane: list[int]) -> tuple[list[int], int]:
    """Check the tensor table; return where each layer starts and the data ends, counted from the data's first byte."""
    starts, end = {}, 0
    tensors = {}
    for name, entry in table.items():
        if not isinstance(entry, dict) or min(entry["shape"], default=0) < 0:
            raise TypeError(f"tensor {name} without a description")
        starts[name] = end
        end += prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        if entry["data_offsets"] != [starts[name], end]:
            raise ValueError(f"tensor {name} at {entry['data_offsets']}, expected {[starts[name], end]}")
        if ".stats." not in name:
            tensors[name] = (entry["dtype"], entry["shape"])
    if len(tensors) != 1 + 2 * num_layers:
        raise ValueError(f"{len(tensors)} tensors, expected {1 + 2 * num_layers}")
    names = ["token_ids"] + [f"layer.{i}.{part}" for i in range(num_layers) for part in ("keys", "values")]
    expected = [("I32", [plane[1]])] + [(dtype, plane)] * (2 * num_layers)
    if list(tensors.items()) != list(zip(names, expected, strict=True)):
        raise ValueError("tensors of other names, dtypes or shapes than one chunk has")
    plane_bytes = prod(plane) * ITEM_BYTES[dtype]
    if any(starts[values] - starts[keys] != plane_bytes for keys, values in zip(names[1::2], names[2::2], strict=True)):
        raise ValueError("something between the keys and the values of a layer")
    return [starts[name] for name in names[1::2]], end
