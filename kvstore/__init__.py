"""KV tensors that outlive the process: chunk KV by content key, over memory, disk and other tiers.

Start at `open_store` and `KVStore`; `errors` draws the errors, `tensors` defines the letters of shapes,
docs/kv-format.md the bytes, and `conformance` what every tier promises. Names load at first use, so that importing
this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epic_rag.kvstore.blobstore import BlobStore, TierStats
    from epic_rag.kvstore.disk import DiskStore
    from epic_rag.kvstore.errors import (
        StoreClosedError,
        StoreError,
        StoreFormatError,
        StoreURIError,
        StoreVersionError,
        StoreWriteError,
    )
    from epic_rag.kvstore.keys import ChunkKey, chunk_key
    from epic_rag.kvstore.memory import MemoryStore
    from epic_rag.kvstore.profile import EncodingProfile
    from epic_rag.kvstore.reports import Hit, ProfileStats, StoreStats, VerifyReport
    from epic_rag.kvstore.store import KVStore
    from epic_rag.kvstore.tensors import ChunkKV
    from epic_rag.kvstore.uri import open_store

_HOME = {
    "BlobStore": "blobstore",
    "ChunkKV": "tensors",
    "ChunkKey": "keys",
    "DiskStore": "disk",
    "EncodingProfile": "profile",
    "Hit": "reports",
    "KVStore": "store",
    "MemoryStore": "memory",
    "ProfileStats": "reports",
    "StoreClosedError": "errors",
    "StoreError": "errors",
    "StoreFormatError": "errors",
    "StoreStats": "reports",
    "StoreURIError": "errors",
    "StoreVersionError": "errors",
    "StoreWriteError": "errors",
    "TierStats": "blobstore",
    "VerifyReport": "reports",
    "chunk_key": "keys",
    "open_store": "uri",
}

__all__ = [
    "BlobStore",
    "ChunkKV",
    "ChunkKey",
    "DiskStore",
    "EncodingProfile",
    "Hit",
    "KVStore",
    "MemoryStore",
    "ProfileStats",
    "StoreClosedError",
    "StoreError",
    "StoreFormatError",
    "StoreStats",
    "StoreURIError",
    "StoreVersionError",
    "StoreWriteError",
    "TierStats",
    "VerifyReport",
    "chunk_key",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
