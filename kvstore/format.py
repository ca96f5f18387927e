"""Blobs: one chunk's KV as a safetensors file with checksums (docs/kv-format.md)."""

from itertools import chain
from typing import TYPE_CHECKING

import xxhash

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import CODEC_NONE, ITEM_BYTES, BlobHeader, ByteRange, build_header, parse_header
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.tensors import ChunkKV

if TYPE_CHECKING:
    import torch

_TAGS = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
_DTYPES = {tag: name.removeprefix("torch.") for name, tag in _TAGS.items()}


def pack(key: ChunkKey, kv: ChunkKV, profile_digest: str, encode_seconds: float) -> list[Buffer]:
    """Lay out a blob as buffers to be written one after the other.

    The buffers of contiguous CPU tensors are the tensors' own memory; anything else is copied once. The tensors must
    not change until the buffers are written.

    Args:
        key: the chunk's key.
        kv: the KV.
        profile_digest: digest of the encoding profile.
        encode_seconds: what the chunk cost to encode.
    """
    num_layers, num_kv_heads, num_tokens, head_dim = kv.keys.shape
    token_ids = _memory(kv.token_ids)
    keys, values = kv.keys.detach().cpu(), kv.values.detach().cpu()
    layers = [(_memory(keys[i]), _memory(values[i])) for i in range(num_layers)]
    metadata = {
        "codec": CODEC_NONE,
        "chunk_key": key,
        "profile": profile_digest,
        "dtype": _TAGS[str(kv.keys.dtype)],
        "num_layers": str(num_layers),
        "num_kv_heads": str(num_kv_heads),
        "num_tokens": str(num_tokens),
        "head_dim": str(head_dim),
        "encode_seconds": repr(float(encode_seconds)),
        "checksum.token_ids": _checksum(token_ids),
    }
    metadata |= {f"checksum.layer.{i}": _checksum(*planes) for i, planes in enumerate(layers)}
    plane = [num_kv_heads, num_tokens, head_dim]
    tensors = [("token_ids", "I32", [num_tokens])]
    tensors += [(f"layer.{i}.{part}", metadata["dtype"], plane) for i in range(num_layers) for part in _PARTS]
    return [build_header(metadata, tensors), token_ids, *chain.from_iterable(layers)]


def unpack(buffer: Buffer, expect_key: ChunkKey) -> ChunkKV:
    """Read a blob and check every byte of it.

    The tensors are views of `buffer` where that is writable (a private file mapping is); read-only bytes are copied
    once, since torch has no read-only tensors. `keys` and `values` are contiguous within each layer, not across them.

    Raises:
        StoreFormatError: any flaw: truncated, a checksum that does not match, another chunk's KV, not a blob.
        StoreVersionError: a version or codec that this program does not know.
    """
    header = parse_header(buffer)
    if header.chunk_key != expect_key:
        raise StoreFormatError(f"holds the KV of {header.chunk_key}, expected {expect_key}")
    if len(buffer) != header.total_bytes:
        raise StoreFormatError(f"{len(buffer)} bytes, the header says {header.total_bytes}")
    view = _writable(memoryview(buffer))
    token_ids = read_token_ids(header, _slice(view, header.token_ids))
    for index, where in enumerate(header.layers):
        _check_layer(header, index, _slice(view, where))
    keys, values = _planes(header, view[header.layers[0].start :], len(header.layers))
    return ChunkKV(keys, values, token_ids)


def read_token_ids(header: BlobHeader, data: memoryview) -> "torch.Tensor":
    """Return the token ids [T], int32, from the bytes at `header.token_ids`.

    Raises:
        StoreFormatError: the wrong length, or a checksum that does not match.
    """
    import torch

    if len(data) != header.token_ids.length or _checksum(data) != header.token_checksum:
        raise StoreFormatError("token ids: checksum does not match")
    return torch.frombuffer(_writable(data), dtype=torch.int32)


def read_layer(header: BlobHeader, index: int, data: memoryview) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return one layer's keys and values, each [H, T, D], from the bytes at `header.layers[index]`.

    Serves a reader that fetches layer after layer while it computes; `unpack` reads all at once.

    Raises:
        StoreFormatError: the wrong length, or a checksum that does not match.
    """
    _check_layer(header, index, data)
    keys, values = _planes(header, _writable(data), 1)
    return keys[0], values[0]


_PARTS = ("keys", "values")


def _planes(header: BlobHeader, data: memoryview, num_layers: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """View layers that lie one after the other as keys and values [L, H, T, D]."""
    import torch

    _, num_kv_heads, num_tokens, head_dim = header.shape
    item_bytes = ITEM_BYTES[header.dtype]
    flat = torch.frombuffer(data, dtype=getattr(torch, _DTYPES[header.dtype]))
    size = (num_layers, num_kv_heads, num_tokens, head_dim)
    stride = (header.layers[0].length // item_bytes, num_tokens * head_dim, head_dim, 1)
    return flat.as_strided(size, stride), flat.as_strided(size, stride, header.plane_bytes // item_bytes)


def _check_layer(header: BlobHeader, index: int, data: memoryview) -> None:
    if len(data) != header.layers[index].length:
        raise StoreFormatError(f"layer {index}: {len(data)} bytes, expected {header.layers[index].length}")
    if _checksum(data[: 2 * header.plane_bytes]) != header.layer_checksums[index]:
        raise StoreFormatError(f"layer {index}: checksum does not match")


def _checksum(*parts: memoryview) -> str:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _slice(view: memoryview, where: ByteRange) -> memoryview:
    return view[where.start : where.start + where.length]


def _writable(data: memoryview) -> memoryview:
    """Return the bytes themselves where they may be written, else a copy."""
    import torch

    if not data.readonly:
        return data
    # torch reuses freed memory of this size; a bytearray would take every page anew, at a tenth of the speed.
    copy = torch.empty(len(data), dtype=torch.uint8).numpy().data
    copy[:] = data
    return copy


def _memory(tensor: "torch.Tensor") -> memoryview:
    import torch

    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
