"""Reading a blob into tensors that are there already, for example into the places of a KV cache."""

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
    import torch

    # Arrays of bytes [L, H, T * D * item size]: to make a tensor of every head would take as long as reading it.
    planes = [out.view(torch.uint8).numpy().reshape(*header.shape[:2], -1) for out in (keys, values)]
    for index, where in enumerate(header.layers):
        heads = [head.data for plane in planes for head in plane[index]]
        blob.read(where.start, heads)
        if not matches(header.layer_checksums[index], *heads):
            raise StoreFormatError(f"layer {index}: checksum does not match")


def _fill_decoded(blob: OpenBlob, header: BlobHeader, keys: "Tensor", values: "Tensor") -> None:
    import torch

    longest = max(layer.length for layer in header.layers)
    scratch = torch.empty(longest, dtype=torch.uint8).numpy().data
    for index, where in enumerate(header.layers):
        data = scratch[: where.length]
        blob.read(where.start, [data])
        read_layer(header, index, data, (keys[index], values[index]))
