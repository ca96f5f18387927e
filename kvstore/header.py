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
from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.codecs_base import ITEM_BYTES, KV_DTYPES, MAX_RATIO
from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError
from epic_rag.kvstore.keys import FORMAT_VERSION
from epic_rag.kvstore.layout import read_layout, stats_part, write_table
from epic_rag.kvstore.mac import MAC_DIGITS, Authenticator

FORMAT_NAME = "epic-rag-kv"
CODEC_NONE = "none"
LENGTH_BYTES = 8
ALIGNMENT_BYTES = 64
MAX_HEADER_BYTES = 16 << 20

# The seal stands first in every version, so that any reader can check it before it trusts the JSON behind it.
_METADATA_START = b'{"__metadata__":'
_SEAL_START = _METADATA_START + b'{"header_checksum":"'
_SEAL_AT = LENGTH_BYTES + len(_SEAL_START)
_NO_SEAL = b"0" * 32
_MAC_START = f'","format":"{FORMAT_NAME}","format_version":"{FORMAT_VERSION}","mac":"'.encode()
_MAC_AT = _SEAL_AT + len(_NO_SEAL) + len(_MAC_START)
_NO_MAC = b"0" * MAC_DIGITS
_DECODER = json.JSONDecoder()


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
        codec: how its layers are stored.
        dtype: "BF16", "F16" or "F32".
        shape: L, H, T, D.
        encode_seconds: what it cost to make.
        token_ids: where the token ids lie.
        layers: where each layer lies: the parts that its codec makes of it, then any statistics.
        part_lengths: bytes of each part, by layer.
        token_checksum: of the token ids: xxh3_128, or sha256 where the header was read with an authenticator.
        layer_checksums: of each layer's parts, likewise.
        stats: where each layer's statistics lie, inside the layer's range; empty where the blob has none, or none that
            can be checked.
        stats_checksums: of each layer's statistics, likewise.
    """

    chunk_key: str
    profile_digest: str
    codec: str
    dtype: str
    shape: tuple[int, int, int, int]
    encode_seconds: float
    token_ids: ByteRange
    layers: tuple[ByteRange, ...]
    part_lengths: tuple[tuple[int, ...], ...]
    token_checksum: str
    layer_checksums: tuple[str, ...]
    stats: tuple[ByteRange, ...]
    stats_checksums: tuple[str, ...]
    data_start: int = field(repr=False)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one layer's keys, and of its values, when decoded: H * T * D items."""
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


def build_header(
    metadata: Mapping[str, str],
    tensors: Sequence[tuple[str, str, Sequence[int]]],
    authenticator: Authenticator | None = None,
) -> bytes:
    """Write and seal a header.

    Args:
        metadata: the blob's fields; the seal, the format's name and version and the MAC are put in front of them.
        tensors: (name, safetensors dtype, shape) in the order of their bytes.
        authenticator: adds a MAC.
    """
    fields = {"header_checksum": _NO_SEAL.decode(), "format": FORMAT_NAME, "format_version": str(FORMAT_VERSION)}
    if authenticator is not None:
        fields["mac"] = _NO_MAC.decode()
    # The metadata's object, then the table's: put together they are one.
    head = json.dumps({"__metadata__": {**fields, **metadata}}, separators=(",", ":")).removesuffix("}")
    text = f"{head}{',' if len(tensors) else ''}{write_table(tensors)[1:]}".encode("ascii")
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    header = struct.pack("<Q", len(text)) + text
    if authenticator is not None:
        header = _replace(header, _MAC_AT, authenticator.mac(header).encode("ascii"))
    return _replace(header, _SEAL_AT, _seal(header))


def parse_header(buffer: Buffer, authenticator: Authenticator | None = None) -> BlobHeader:
    """Read the header from the first bytes of a blob.

    Args:
        buffer: at least the header.
        authenticator: where given, a header without its MAC is refused.

    Raises:
        StoreFormatError: the header is damaged, or describes something else than one chunk's KV.
        StoreTrustError: no MAC of the authenticator's.
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
        metadata, table = _split(raw[LENGTH_BYTES:].decode("ascii"))
        if metadata["format"] != FORMAT_NAME:
            raise StoreFormatError(f"header: format {metadata['format']!r}, expected {FORMAT_NAME!r}")
        _check_known("format_version", metadata, [str(FORMAT_VERSION)])
        if authenticator is not None:
            _check_mac(raw, authenticator)
        _check_known("codec", metadata, list(CODECS))
        return _interpret(metadata, table, end, "checksum" if authenticator is None else "sha256")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise StoreFormatError(f"header: malformed ({type(error).__name__}: {error})") from error


def describe(buffer: Buffer) -> BlobNote:
    """Return what a tier's bookkeeping keeps about a blob; an empty note for bytes that are no blob."""
    try:
        header = parse_header(buffer)
    except StoreFormatError:
        return BlobNote()
    return BlobNote(header.profile_digest, header.shape[2], header.encode_seconds)


def _split(text: str) -> tuple[dict[str, str], str]:
    """Return the metadata, and the JSON of the tensors behind it, which is read only where it is not the usual."""
    metadata, end = _DECODER.raw_decode(text, len(_METADATA_START))
    return metadata, "{" + text[end:].rstrip(" ").removeprefix(",")


def _seal(header: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(_replace(header, _SEAL_AT, _NO_SEAL)).encode("ascii")


def _replace(header: bytes, at: int, text: bytes) -> bytes:
    return header[:at] + text + header[at + len(text) :]


def _check_mac(header: bytes, authenticator: Authenticator) -> None:
    """Check the MAC where it must stand; one anywhere else is none."""
    stands = header.startswith(_MAC_START, _MAC_AT - len(_MAC_START))
    mac = header[_MAC_AT : _MAC_AT + MAC_DIGITS].decode("latin-1") if stands else None
    authenticator.check(_replace(_replace(header, _SEAL_AT, _NO_SEAL), _MAC_AT, _NO_MAC), mac)


def _check_known(name: str, metadata: Mapping[str, str], known: Sequence[str]) -> None:
    if metadata[name] not in known:
        raise StoreVersionError(
            f"{name} {metadata[name]!r}, this version of epic-rag reads {', '.join(map(repr, known))}: "
            "use the version that wrote the store, or ingest again into a new store"
        )


def _interpret(metadata: Mapping[str, str], table: str, data_start: int, checksum: str) -> BlobHeader:
    shape = tuple(int(metadata[name]) for name in ("num_layers", "num_kv_heads", "num_tokens", "head_dim"))
    num_layers, num_kv_heads, num_tokens, head_dim = shape
    dtype, codec = metadata["dtype"], metadata["codec"]
    if min(shape) < 1 or dtype not in KV_DTYPES or set(map(type, metadata.values())) != {str}:
        raise ValueError(f"shape {list(shape)} of {dtype}, or a field that is not text")
    encode_seconds = float(metadata["encode_seconds"])
    if not 0 <= encode_seconds < inf:
        raise ValueError(f"encode_seconds {encode_seconds}")
    parts = CODECS[codec].parts(dtype, (num_kv_heads, num_tokens, head_dim))
    stats = stats_part(num_kv_heads, num_tokens)
    layout = read_layout(table, num_layers, num_tokens, parts, stats)
    stats_checksums = tuple(metadata.get(f"{checksum}.layer.{i}.stats", "") for i in range(num_layers))
    has_stats = bool(layout.stats_starts) and all(stats_checksums)
    edges = [data_start + offset for offset in (*layout.starts, layout.end)]
    header = BlobHeader(
        chunk_key=metadata["chunk_key"],
        profile_digest=metadata["profile"],
        codec=codec,
        dtype=dtype,
        shape=(num_layers, num_kv_heads, num_tokens, head_dim),
        encode_seconds=encode_seconds,
        token_ids=ByteRange(data_start, 4 * num_tokens),
        layers=tuple(ByteRange(start, stop - start) for start, stop in pairwise(edges)),
        part_lengths=layout.part_lengths,
        token_checksum=metadata[f"{checksum}.token_ids"],
        layer_checksums=tuple(metadata[f"{checksum}.layer.{i}"] for i in range(num_layers)),
        stats=tuple(ByteRange(data_start + start, stats.num_bytes) for start in layout.stats_starts if has_stats),
        stats_checksums=stats_checksums if has_stats else (),
        data_start=data_start,
    )
    _check_lengths(header)
    return header


def _check_lengths(header: BlobHeader) -> None:
    lengths = {layer.length for layer in header.layers}
    if header.codec == CODEC_NONE and (len(lengths) != 1 or lengths.pop() % ITEM_BYTES[header.dtype]):
        raise ValueError("layers of different lengths")
    if 2 * header.plane_bytes > MAX_RATIO * min(map(sum, header.part_lengths)):
        raise ValueError(f"a layer that would decode to more than {MAX_RATIO} times its bytes")
