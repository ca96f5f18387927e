"""Reading a blob into tensors that are there already, for example into the places of a KV cache."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING

from epic_rag.kvstore.checksum import matches
from epic_rag.kvstore.chunk_stats import read_stats
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.format import check_header, check_out, read_layer, read_token_ids
from epic_rag.kvstore.header import CODEC_NONE, LENGTH_BYTES, BlobHeader, header_bytes, parse_header
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.openblob import OpenBlob
from epic_rag.kvstore.tensors import ChunkKV

if TYPE_CHECKING:
    from torch import Tensor

FIRST_BYTES = 24 << 10
"""Read at once; holds the header of a model of 60 layers, statistics included."""

TWO_THREADS_BYTES = 1 << 20
"""From this size on, a blob is worth a second thread."""
CORES = os.cpu_count() or 1


def unpack_into(
    blob: OpenBlob, expect_key: ChunkKey, out: "tuple[Tensor, Tensor]", authenticator: Authenticator | None = None
) -> ChunkKV:
    """Read a blob and check every byte of it.

    Args:
        blob: the blob.
        expect_key: its key.
        out: keys and values [L, H, T, D] on the CPU that are filled and returned, for example slices of longer ones:
            the tokens and items of a head lie side by side. After an error they hold anything.
        authenticator: where given, a blob without its MAC is refused.

    Raises:
        StoreFormatError: any flaw: truncated, a checksum that does not match, another chunk's KV, not a blob.
        StoreTrustError: no MAC of the authenticator's.
        StoreVersionError: a version or codec that this program does not know.
        ValueError: `out` of another shape or dtype than the blob's.
    """
    header = _read_header(blob, authenticator)
    check_header(header, expect_key, blob.num_bytes)
    check_out(header, out, header.shape)
    token_ids = read_token_ids(header, read_bytes(blob, *header.token_ids))
    (_fill_plain if header.codec == CODEC_NONE else _fill_decoded)(blob, header, *out)
    return ChunkKV(*out, token_ids, read_stats(blob, header))


def read_bytes(blob: OpenBlob, start: int, length: int) -> memoryview:
    """Return bytes of an open blob.

    Raises:
        StoreFormatError: the blob ends before.
    """
    data = memoryview(bytearray(length))
    blob.read(start, [data])
    return data


def _read_header(blob: OpenBlob, authenticator: Authenticator | None) -> BlobHeader:
    head = read_bytes(blob, 0, min(blob.num_bytes, FIRST_BYTES))
    if len(head) >= LENGTH_BYTES and header_bytes(head) > len(head):
        head = read_bytes(blob, 0, header_bytes(head))
    return parse_header(head, authenticator)


def _fill_plain(blob: OpenBlob, header: BlobHeader, keys: "Tensor", values: "Tensor") -> None:
    """Read each layer straight to where it belongs; it is checked there, while the processor's cache still holds it."""
    item_bytes, (_, num_kv_heads, num_tokens, head_dim) = keys.element_size(), header.shape
    length = num_tokens * head_dim * item_bytes
    planes = [(_memory(out), out.stride(0) * item_bytes, out.stride(1) * item_bytes) for out in (keys, values)]

    def fill(layers: range) -> None:
        for index in layers:
            heads = [
                memory[start : start + length]
                for memory, layer_bytes, head_bytes in planes
                for start in (index * layer_bytes + head * head_bytes for head in range(num_kv_heads))
            ]
            blob.read(header.layers[index].start, heads)
            if not matches(header.layer_checksums[index], *heads):
                raise StoreFormatError(f"layer {index}: checksum does not match")

    _fill_layers(fill, blob, len(header.layers))


def _memory(tensor: "Tensor") -> memoryview:
    """Return the bytes from the tensor's first number to its last, with what lies between them.

    To slice these takes a quarter of the time that a view of every head takes, which is a tenth of reading it.
    """
    import torch

    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).view(torch.uint8).numpy().data


def _fill_decoded(blob: OpenBlob, header: BlobHeader, keys: "Tensor", values: "Tensor") -> None:
    import torch

    longest = max(layer.length for layer in header.layers)

    def fill(layers: range) -> None:
        scratch = torch.empty(longest, dtype=torch.uint8).numpy().data
        for index in layers:
            where = header.layers[index]
            data = scratch[: where.length]
            blob.read(where.start, [data])
            read_layer(header, index, data, (keys[index], values[index]))

    _fill_layers(fill, blob, len(header.layers))


def _fill_layers(fill: Callable[[range], None], blob: OpenBlob, num_layers: int) -> None:
    """Fill the layers; those of a large blob in two threads where that is faster."""
    if CORES < 2 or blob.num_bytes < TWO_THREADS_BYTES or not blob.is_faster_by_two:
        fill(range(num_layers))
        return
    first, second = range(num_layers // 2), range(num_layers // 2, num_layers)
    other = _threads(os.getpid()).submit(fill, second)
    try:
        fill(first)
    finally:
        if not other.cancel():
            wait([other])
    if other.cancelled():  # every thread was busy with another blob
        fill(second)
    else:
        other.result()


@cache
def _threads(process_id: int) -> ThreadPoolExecutor:
    """Return this process's threads; a forked one has none of its parent's."""
    return ThreadPoolExecutor(min(CORES - 1, 4), "epic-rag-read")
