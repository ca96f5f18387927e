"""Blobs: one chunk's KV as a safetensors file with checksums (docs/kv-format.md)."""

from typing import TYPE_CHECKING

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.checksum import matches, sha256, xxh3
from epic_rag.kvstore.chunk_stats import check_layer_stats, read_stats
from epic_rag.kvstore.codecs import CODECS, find_codec
from epic_rag.kvstore.codecs_base import ITEM_BYTES, tensor_bytes, writable
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import CODEC_NONE, BlobHeader, ByteRange, build_header, parse_header
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.layout import stats_part
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.openblob import ViewBlob
from epic_rag.kvstore.tensors import ChunkKV

if TYPE_CHECKING:
    from torch import Tensor, dtype

_TAGS = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
_DTYPES = {tag: name.removeprefix("torch.") for name, tag in _TAGS.items()}


def pack(
    key: ChunkKey,
    kv: ChunkKV,
    profile_digest: str,
    encode_seconds: float,
    codec: str = CODEC_NONE,
    authenticator: Authenticator | None = None,
) -> list[Buffer]:
    """Lay out a blob as buffers to be written one after the other.

    Under the codec "none" the buffers of contiguous CPU tensors are the tensors' own memory, and must not change until
    they are written; anything else is copied once.

    Args:
        key: the chunk's key.
        kv: the KV.
        profile_digest: digest of the encoding profile.
        encode_seconds: what the chunk cost to encode.
        codec: how the layers are stored; a name of `CODECS`.
        authenticator: adds a MAC.

    Raises:
        ValueError: an unknown codec.
        StoreWriteError: the codec cannot hold these numbers.
        StoreVersionError: the package that the codec needs is not installed.
    """
    num_layers, num_kv_heads, num_tokens, head_dim = kv.keys.shape
    tag = _TAGS[str(kv.keys.dtype)]
    coder, keys, values = find_codec(codec), kv.keys.detach().cpu(), kv.values.detach().cpu()
    layers = [coder.encode(keys[i], values[i]) for i in range(num_layers)]
    token_ids = tensor_bytes(kv.token_ids)
    stats = [] if kv.stats is None else [tensor_bytes(layer) for layer in kv.stats]
    metadata = {
        "codec": codec,
        "chunk_key": key,
        "profile": profile_digest,
        "dtype": tag,
        "num_layers": str(num_layers),
        "num_kv_heads": str(num_kv_heads),
        "num_tokens": str(num_tokens),
        "head_dim": str(head_dim),
        "encode_seconds": repr(float(encode_seconds)),
    }
    for name, digest in (("checksum", xxh3), ("sha256", sha256))[: 1 if authenticator is None else 2]:
        metadata[f"{name}.token_ids"] = digest(token_ids)
        metadata |= {f"{name}.layer.{i}": digest(*parts) for i, parts in enumerate(layers)}
        metadata |= {f"{name}.layer.{i}.stats": digest(data) for i, data in enumerate(stats)}
    described = [*coder.parts(tag, (num_kv_heads, num_tokens, head_dim))]
    if stats:
        described.append(stats_part(num_kv_heads, num_tokens))
        layers = [[*parts, data] for parts, data in zip(layers, stats, strict=True)]
    tensors = [("token_ids", "I32", [num_tokens])]
    for i, layer in enumerate(layers):
        for part, data in zip(described, layer, strict=True):
            dtype, shape = ("U8", [data.nbytes]) if part.packed else (part.dtype, list(part.shape))
            tensors.append((f"layer.{i}.{part.name}", dtype, shape))
    return [build_header(metadata, tensors, authenticator), token_ids, *(data for layer in layers for data in layer)]


def unpack(buffer: Buffer, expect_key: ChunkKey, authenticator: Authenticator | None = None) -> ChunkKV:
    """Read a blob and check every byte of it.

    The tensors of a blob of the codec "none" are views of `buffer` where that is writable (a private file mapping is);
    read-only bytes are copied once. `keys` and `values` are contiguous within each layer, not always across them.
    `unpack_into` fills tensors that are there already.

    Args:
        buffer: the blob.
        expect_key: its key.
        authenticator: where given, a blob without its MAC is refused.

    Raises:
        StoreFormatError: any flaw: truncated, a checksum that does not match, another chunk's KV, not a blob.
        StoreTrustError: no MAC of the authenticator's.
        StoreVersionError: a version or codec that this program does not know.
    """
    header = parse_header(buffer, authenticator)
    check_header(header, expect_key, len(buffer))
    view = memoryview(buffer)
    token_ids = read_token_ids(header, _slice(view, header.token_ids))
    stats = read_stats(ViewBlob(view), header)
    if header.codec == CODEC_NONE:
        view = writable(view)
        for index, where in enumerate(header.layers):
            _check_layer(header, index, _slice(view, where))
        return ChunkKV(*_planes(header, view[header.layers[0].start :], len(header.layers)), token_ids, stats)
    keys, values = _empty(header.shape, header)
    for index, where in enumerate(header.layers):
        _decode(header, index, _slice(view, where), keys[index], values[index])
    return ChunkKV(keys, values, token_ids, stats)


def check(buffer: Buffer, expect_key: ChunkKey, authenticator: Authenticator | None = None) -> BlobHeader:
    """Check every byte of a blob without decoding it; needs no codec's package.

    Raises:
        StoreFormatError: as `unpack` does.
    """
    header = parse_header(buffer, authenticator)
    check_header(header, expect_key, len(buffer))
    view = memoryview(buffer)
    _check_token_ids(header, _slice(view, header.token_ids))
    for index, where in enumerate(header.layers):
        _check_layer(header, index, _slice(view, where))
    for index, where in enumerate(header.stats):
        check_layer_stats(header, index, _slice(view, where))
    return header


def check_header(header: BlobHeader, expect_key: ChunkKey, num_bytes: int) -> None:
    """Check that a header is that of the chunk that was asked for, and of a blob of that many bytes.

    Raises:
        StoreFormatError: it is another's.
    """
    if header.chunk_key != expect_key:
        raise StoreFormatError(f"holds the KV of {header.chunk_key}, expected {expect_key}")
    if num_bytes != header.total_bytes:
        raise StoreFormatError(f"{num_bytes} bytes, the header says {header.total_bytes}")


def check_out(header: BlobHeader, out: "tuple[Tensor, Tensor]", shape: tuple[int, ...]) -> None:
    """Check that keys and values of a blob can be written into these tensors.

    Raises:
        ValueError: they cannot.
    """
    dtype, head_dim = torch_dtype(header), header.shape[3]
    for name, tensor in zip(("keys", "values"), out, strict=True):
        fits = tensor.shape == shape and tensor.dtype == dtype and tensor.device.type == "cpu"
        if not fits or tensor.stride()[-2:] != (head_dim, 1):
            raise ValueError(
                f"out, {name}: expected {list(shape)} {dtype} on the CPU, the items of a head side by side, "
                f"got {list(tensor.shape)} {tensor.dtype} on {tensor.device}, strides {list(tensor.stride())}"
            )


def read_token_ids(header: BlobHeader, data: memoryview) -> "Tensor":
    """Return the token ids [T], int32, from the bytes at `header.token_ids`.

    Raises:
        StoreFormatError: the wrong length, or a checksum that does not match.
    """
    import torch

    _check_token_ids(header, data)
    return torch.frombuffer(writable(data), dtype=torch.int32)


def read_layer(
    header: BlobHeader, index: int, data: memoryview, out: "tuple[Tensor, Tensor] | None" = None
) -> "tuple[Tensor, Tensor]":
    """Return one layer's keys and values, each [H, T, D], from the bytes at `header.layers[index]`.

    Serves a reader that fetches layer after layer while it computes; `unpack` reads all at once.

    Args:
        header: the blob's header; one that was parsed with an authenticator checks layers against forgery too.
        index: the layer.
        data: its bytes.
        out: keys and values [H, T, D] on the CPU that are filled and returned; after an error they hold anything.

    Raises:
        StoreFormatError: the wrong length, or a checksum that does not match.
        StoreVersionError: the package that the codec needs is not installed.
        ValueError: `out` of another shape or dtype than the layer's.
    """
    if out is None and header.codec == CODEC_NONE:
        _check_layer(header, index, data)
        keys, values = _planes(header, writable(data), 1)
        return keys[0], values[0]
    if out is None:
        out = _empty(header.shape[1:], header)
    check_out(header, out, header.shape[1:])
    _decode(header, index, data, *out)
    return out


def _decode(header: BlobHeader, index: int, data: memoryview, keys: "Tensor", values: "Tensor") -> None:
    _check_layer(header, index, data)
    parts, start = [], 0
    for length in header.part_lengths[index]:
        parts.append(data[start : start + length])
        start += length
    CODECS[header.codec].decode(parts, keys, values)


def _planes(header: BlobHeader, data: memoryview, num_layers: int) -> "tuple[Tensor, Tensor]":
    """View layers that lie one after the other as keys and values [L, H, T, D]."""
    import torch

    _, num_kv_heads, num_tokens, head_dim = header.shape
    item_bytes = ITEM_BYTES[header.dtype]
    flat = torch.frombuffer(data, dtype=torch_dtype(header))
    size = (num_layers, num_kv_heads, num_tokens, head_dim)
    stride = (header.layers[0].length // item_bytes, num_tokens * head_dim, head_dim, 1)
    return flat.as_strided(size, stride), flat.as_strided(size, stride, header.plane_bytes // item_bytes)


def _empty(shape: tuple[int, ...], header: BlobHeader) -> "tuple[Tensor, Tensor]":
    import torch

    dtype = torch_dtype(header)
    return torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)


def torch_dtype(header: BlobHeader) -> "dtype":
    """Return the torch dtype of a blob's keys and values."""
    import torch

    found: torch.dtype = getattr(torch, _DTYPES[header.dtype])
    return found


def _check_token_ids(header: BlobHeader, data: memoryview) -> None:
    if len(data) != header.token_ids.length or not matches(header.token_checksum, data):
        raise StoreFormatError("token ids: checksum does not match")


def _check_layer(header: BlobHeader, index: int, data: memoryview) -> None:
    if len(data) != header.layers[index].length:
        raise StoreFormatError(f"layer {index}: {len(data)} bytes, expected {header.layers[index].length}")
    if not matches(header.layer_checksums[index], data[: sum(header.part_lengths[index])]):
        raise StoreFormatError(f"layer {index}: checksum does not match")


def _slice(view: memoryview, where: ByteRange) -> memoryview:
    return view[where.start : where.start + where.length]
