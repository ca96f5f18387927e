"""What a store holds, chunk by chunk, from the headers alone."""

from collections.abc import Iterator
from typing import NamedTuple

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.filling import FIRST_BYTES
from epic_rag.kvstore.header import LENGTH_BYTES, BlobHeader, header_bytes, parse_header
from epic_rag.kvstore.keys import ChunkKey, is_key


class StoredChunk(NamedTuple):
    """A chunk as its store lists it: its key, its bytes, and the digest of its encoding profile."""

    key: ChunkKey
    num_bytes: int
    profile_digest: str


def survey(blobs: BlobStore) -> Iterator[StoredChunk]:
    """Yield the chunks of a store by key; those whose header cannot be read are passed over: they are for `verify`."""
    for name in blobs.names():
        size_bytes = blobs.size_bytes(name) if is_key(name) else None
        header = None if size_bytes is None else read_header(blobs, name)
        if size_bytes is not None and header is not None:
            yield StoredChunk(ChunkKey(name), size_bytes, header.profile_digest)


def read_header(blobs: BlobStore, name: str) -> BlobHeader | None:
    """Return a blob's header, read by range; None where there is none that can be read. Checks no MAC."""
    view = blobs.get_range(name, 0, FIRST_BYTES)
    try:
        if view is not None and len(view) >= LENGTH_BYTES and header_bytes(view) > len(view):
            view = blobs.get_range(name, 0, header_bytes(view))
        return None if view is None else parse_header(view)
    except StoreFormatError:
        return None
