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
        StoreKeyError,
        StoreTrustError,
        StoreUnavailableError,
        StoreURIError,
        StoreVersionError,
        StoreWriteError,
    )
    from epic_rag.kvstore.keys import ChunkKey, chunk_key
    from epic_rag.kvstore.memory import MemoryStore
    from epic_rag.kvstore.prefetch import Prefetch
    from epic_rag.kvstore.profile import EncodingProfile
    from epic_rag.kvstore.redis_options import RedisOptions
    from epic_rag.kvstore.redis_store import RedisStore
    from epic_rag.kvstore.reports import Hit, ProfileStats, StoreStats, VerifyReport
    from epic_rag.kvstore.single_flight import SingleFlight
    from epic_rag.kvstore.store import KVStore
    from epic_rag.kvstore.tensors import ChunkKV
    from epic_rag.kvstore.tiered import TieredStore
    from epic_rag.kvstore.tierstats import TieredCounts
    from epic_rag.kvstore.uri import mask_uri, open_store

_HOME = {
    "BlobStore": "blobstore",
    "ChunkKV": "tensors",
    "ChunkKey": "keys",
    "DiskStore": "disk",
    "EncodingProfile": "profile",
    "Hit": "reports",
    "KVStore": "store",
    "MemoryStore": "memory",
    "Prefetch": "prefetch",
    "ProfileStats": "reports",
    "RedisOptions": "redis_options",
    "RedisStore": "redis_store",
    "SingleFlight": "single_flight",
    "StoreClosedError": "errors",
    "StoreError": "errors",
    "StoreFormatError": "errors",
    "StoreKeyError": "errors",
    "StoreStats": "reports",
    "StoreTrustError": "errors",
    "StoreURIError": "errors",
    "StoreUnavailableError": "errors",
    "StoreVersionError": "errors",
    "StoreWriteError": "errors",
    "TierStats": "blobstore",
    "TieredCounts": "tierstats",
    "TieredStore": "tiered",
    "VerifyReport": "reports",
    "chunk_key": "keys",
    "mask_uri": "uri",
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
    "Prefetch",
    "ProfileStats",
    "RedisOptions",
    "RedisStore",
    "SingleFlight",
    "StoreClosedError",
    "StoreError",
    "StoreFormatError",
    "StoreKeyError",
    "StoreStats",
    "StoreTrustError",
    "StoreURIError",
    "StoreUnavailableError",
    "StoreVersionError",
    "StoreWriteError",
    "TierStats",
    "TieredCounts",
    "TieredStore",
    "VerifyReport",
    "chunk_key",
    "mask_uri",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
