"""The KV store: chunk KV by key, over any blob store."""

import logging
import math
from collections.abc import Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError, StoreWriteError
from epic_rag.kvstore.format import pack, unpack
from epic_rag.kvstore.keys import ChunkKey, chunk_key, token_list
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.reports import Hit, ProfileStats, StoreStats, VerifyReport
from epic_rag.kvstore.tensors import ChunkKV

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("epic_rag.kvstore")


class KVStore:
    """KV of chunks by `chunk_key`, checked on every read; safe for threads.

    A chunk's blob is named by its key alone. Which profile it belongs to, and its tokens, stand in its header; each
    tier copies them into its bookkeeping, so that statistics read no blob. Damaged blobs are reported, quarantined
    and treated as missing, so that the caller encodes the chunk anew.
    """

    def __init__(self, blobs: BlobStore) -> None:
        """Take ownership of a blob store: `close` closes it."""
        self.blobs = blobs
        self._lock = Lock()
        self._recorded: set[str] = set()
        self._counts = dict.fromkeys(("hits", "misses", "mismatched", "damaged"), 0)

    def get(self, key: ChunkKey, token_ids: "Sequence[int] | Tensor") -> Hit | None:
        """Return a chunk's KV, or None.

        Args:
            key: the chunk's key.
            token_ids: the tokens [T] that were asked for; KV of other tokens is reported and treated as missing.
        """
        return self._checked(key, token_ids, self.blobs.get(key))

    def get_many(self, pairs: "Sequence[tuple[ChunkKey, Sequence[int] | Tensor]]") -> list[Hit | None]:
        """Return `get` of each (key, token ids) pair; a tier behind a network is asked once."""
        views = self.blobs.get_many([key for key, _ in pairs])
        return [self._checked(key, ids, view) for (key, ids), view in zip(pairs, views, strict=True)]

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Return for each key whether a blob is stored under it; reads and checks none of them."""
        return self.blobs.contains(keys)

    def put(self, key: ChunkKey, kv: ChunkKV, *, profile: EncodingProfile, encode_seconds: float) -> int:
        """Store a chunk's KV, and its profile with the first one; does nothing when the key is stored already.

        Args:
            key: `chunk_key(profile, kv.token_ids)`.
            kv: the KV.
            profile: how it was encoded.
            encode_seconds: what that cost; valuable chunks stay longer under "gdsf".

        Returns:
            Bytes written; 0 when the key was there.

        Raises:
            ValueError: the key is not that of this profile and these tokens, or negative or infinite seconds.
            StoreWriteError: no room, read-only, or larger than the budget.
        """
        if not 0 <= encode_seconds < math.inf:
            raise ValueError(f"encode_seconds: expected a number of at least 0, got {encode_seconds}")
        expected = chunk_key(profile, kv.token_ids)
        if key != expected:
            raise ValueError(f"key {key}: the profile and the token ids make {expected}")
        if profile.digest not in self._recorded:
            self.put_profile(profile)
        if self.blobs.contains([key])[0]:
            return 0
        buffers = pack(key, kv, profile.digest, encode_seconds)
        self.blobs.put(key, buffers)
        return sum(memoryview(part).nbytes for part in buffers)

    def delete(self, key: ChunkKey) -> bool:
        """Remove a chunk's KV; returns whether there was any."""
        return self.blobs.delete(key)

    def put_profile(self, profile: EncodingProfile) -> None:
        """Record a profile, never to be replaced; does nothing when it is recorded."""
        name = RECORD_PREFIX + profile.digest
        if not self.blobs.contains([name])[0]:
            self.blobs.put(name, profile.to_json())
        self._recorded.add(profile.digest)

    def profile(self, digest: str) -> EncodingProfile | None:
        """Return the profile of that digest, or None; a damaged record is reported, quarantined and missing."""
        name = RECORD_PREFIX + digest
        view = self.blobs.get(name)
        if view is None:
            return None
        try:
            return _read_profile(name, view)
        except StoreFormatError as error:
            self._recorded.discard(digest)
            self._report_damage(name, error)
            return None

    def profiles(self) -> list[EncodingProfile]:
        """Return every recorded profile."""
        digests = [name.removeprefix(RECORD_PREFIX) for name in self.blobs.names(RECORD_PREFIX)]
        return [profile for digest in digests if (profile := self.profile(digest)) is not None]

    def stats(self) -> StoreStats:
        """Return the store in numbers."""
        usage = self.blobs.usage()
        profiles = tuple(
            ProfileStats(digest, use.entries, use.bytes, use.tokens) for digest, use in sorted(usage.items()) if digest
        )
        with self._lock:
            counts = dict(self._counts)
        return StoreStats(
            entries=sum(p.entries for p in profiles),
            bytes=sum(p.bytes for p in profiles),
            tokens=sum(p.tokens for p in profiles),
            profiles=profiles,
            tiers=(self.blobs.stats(),),
            hits=counts["hits"],
            misses=counts["misses"],
            mismatched=counts["mismatched"],
            damaged=counts["damaged"],
        )

    def verify(self) -> VerifyReport:
        """Check every byte of every chunk and profile, and make the bookkeeping agree with what is stored.

        Damaged blobs are listed, not touched: the next read of one quarantines it. No use is counted.
        """
        try:
            self.blobs.reconcile()
        except StoreWriteError as error:
            _log.warning("the bookkeeping stays as it is (%s)", error)
        checked = 0
        damaged: list[tuple[str, str]] = []
        for name in self.blobs.names():
            view = self.blobs.get_range(name, 0, self.blobs.size_bytes(name) or 0)
            if view is None or not (name.startswith(RECORD_PREFIX) or _is_key(name)):
                continue
            checked += 1
            try:
                _read_profile(name, view) if name.startswith(RECORD_PREFIX) else unpack(view, ChunkKey(name))
            except StoreFormatError as error:
                damaged.append((name, str(error)))
        return VerifyReport(checked, damaged)

    def close(self) -> None:
        """Close the blob store; KV that was returned stays valid."""
        self.blobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _checked(self, key: ChunkKey, token_ids: "Sequence[int] | Tensor", view: memoryview | None) -> Hit | None:
        if view is None:
            self._count("misses")
            return None
        try:
            kv = unpack(view, key)
        except StoreVersionError as error:
            _log.warning("blob %s: %s", key, error)
            self._count("misses")
            return None
        except StoreFormatError as error:
            self._report_damage(key, error)
            self._count("misses")
            return None
        if kv.token_ids.tolist() != token_list(token_ids):
            _log.warning("blob %s holds the KV of other tokens than were asked for: treated as missing", key)
            self._count("misses", "mismatched")
            return None
        self._count("hits")
        return Hit(kv, self.blobs.tier, view.nbytes)

    def _report_damage(self, name: str, error: StoreFormatError) -> None:
        _log.warning("blob %s is damaged (%s): quarantined and treated as missing", name, error)
        self.blobs.quarantine(name, str(error))
        self._count("damaged")

    def _count(self, *what: str) -> None:
        with self._lock:
            for name in what:
                self._counts[name] += 1


def _read_profile(name: str, view: memoryview) -> EncodingProfile:
    profile = EncodingProfile.from_json(bytes(view))
    if RECORD_PREFIX + profile.digest != name:
        raise StoreFormatError(f"profile record: its fields make the digest {profile.digest}")
    return profile


def _is_key(name: str) -> bool:
    return len(name) == 64 and "-" not in name
