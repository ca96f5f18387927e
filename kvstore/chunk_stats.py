"""The statistics that may stand behind each layer of a blob: what attention a chunk's tokens received."""

from typing import TYPE_CHECKING

from epic_rag.kvstore.checksum import matches
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import BlobHeader
from epic_rag.kvstore.openblob import OpenBlob

if TYPE_CHECKING:
    from torch import Tensor


def read_stats(blob: OpenBlob, header: BlobHeader) -> "Tensor | None":
    """Read and check a blob's statistics, a copy: they are about a hundredth of it, and may lie at odd addresses.

    Args:
        blob: the blob.
        header: its header; one that was parsed with an authenticator checks against forgery too.

    Returns:
        float16 [L, H, 2, T], or None where the blob has none.

    Raises:
        StoreFormatError: truncated, or a checksum that does not match.
    """
    if not header.stats:
        return None
    import torch

    num_layers, num_kv_heads, num_tokens, _ = header.shape
    stats = torch.empty(num_layers, num_kv_heads, 2, num_tokens, dtype=torch.float16)
    rows = stats.view(num_layers, -1).view(torch.uint8).numpy()
    for index, where in enumerate(header.stats):
        blob.read(where.start, [rows[index].data])
        check_layer_stats(header, index, rows[index].data)
    return stats


def check_layer_stats(header: BlobHeader, index: int, data: memoryview) -> None:
    """Check the bytes at `header.stats[index]`.

    Raises:
        StoreFormatError: the checksum does not match.
    """
    if not matches(header.stats_checksums[index], data):
        raise StoreFormatError(f"layer {index}, statistics: checksum does not match")
