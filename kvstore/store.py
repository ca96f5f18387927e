"""The KV store: chunk KV by key, over any blob store."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore, Found
from epic_rag.kvstore.codecs import find_codec
from epic_rag.kvstore.errors import StoreFormatError, StoreTrustError, StoreVersionError
from epic_rag.kvstore.filling import unpack_into
from epic_rag.kvstore.format import check, pack, unpack
from epic_rag.kvstore.header import CODEC_NONE, BlobHeader
from epic_rag.kvstore.keys import ChunkKey, chunk_key, token_list
from epic_rag.kvstore.openblob import OpenBlob, OpensBlobs, ViewBlob
from epic_rag.kvstore.prefetch import Prefetch
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.reports import Hit, ProfileStats, StoreStats, VerifyReport
from epic_rag.kvstore.scrub import Progress, scrub
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.trust import KEY_RECORD, Trust

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("epic_rag.kvstore")


class KVStore:
    """KV of chunks by `chunk_key`, checked on every read; safe for threads.

    A chunk's blob is named by its key alone. Which profile it belongs to, and its tokens, stand in its header; each
    tier copies them into its bookkeeping, so that statistics read no blob. Damaged blobs are reported, quarantined
    and treated as missing, so that the caller encodes the chunk anew.

    With a secret key, whatever was not written with that key is treated like damage. It could not stay where it is: a
    chunk whose key is there is never stored again, so one forged blob would cost an encode at every question.
    """

    def __init__(self, blobs: BlobStore, codec: str = CODEC_NONE, mac_key: bytes | None = None) -> None:
        """Take ownership of a blob store: `close` closes it.

        Args:
            blobs: where the bytes are kept.
            codec: how chunks are written from now on, a name of `epic_rag.kvstore.codecs.CODECS`; each blob says how it
                was written, so any are read.
            mac_key: the store's secret, at least 32 bytes; None writes no MACs and checks none.

        Raises:
            ValueError: an unknown codec, or too short a secret.
            StoreVersionError: the package that the codec needs is not installed.
            StoreKeyError: the store was written with another secret, or with one while none is given, or the other way
                round.
        """
        self.codec = find_codec(codec).name
        self.blobs = blobs
        self.trust = Trust(blobs, mac_key)
        self._authenticator = self.trust.authenticator
        self._lock = Lock()
        self._recorded: set[str] = set()
        self._counts = dict.fromkeys(("hits", "misses", "mismatched", "damaged"), 0)

    def get(
        self, key: ChunkKey, token_ids: "Sequence[int] | Tensor", *, out: "tuple[Tensor, Tensor] | None" = None
    ) -> Hit | None:
        """Return a chunk's KV, or None.

        Args:
            key: the chunk's key.
            token_ids: the tokens [T] that were asked for; KV of other tokens is reported and treated as missing.
            out: keys and values [L, H, T, D] on the CPU that are filled and returned, which saves a copy; after a miss
                they hold anything.

        Raises:
            ValueError: `out` of another shape or dtype than the KV.
        """
        if out is None:
            return self._found(key, token_ids, self.blobs.find(key))
        with self._opened(key) as (blob, tier):
            if blob is None:
                self._count("misses")
                return None
            kv = self._checked(key, token_ids, lambda: unpack_into(blob, key, out, self._authenticator))
            return None if kv is None else Hit(kv, tier, blob.num_bytes)

    def get_many(self, pairs: "Sequence[tuple[ChunkKey, Sequence[int] | Tensor]]") -> list[Hit | None]:
        """Return `get` of each (key, token ids) pair; a tier behind a network is asked once."""
        found = self.blobs.find_many([key for key, _ in pairs])
        return [self._found(key, ids, one) for (key, ids), one in zip(pairs, found, strict=True)]

    def prefetch(self, keys: Sequence[ChunkKey]) -> Prefetch:
        """Start loading chunks to where they are read fastest: the first tier of several, the page cache of a disk."""
        return self.blobs.prefetch(keys)

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
            StoreWriteError: no room, read-only, or larger than the budget; or numbers that the codec cannot hold.
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
        buffers = self.encode(key, kv, profile.digest, encode_seconds)
        self.blobs.put(key, buffers)
        return sum(memoryview(part).nbytes for part in buffers)

    def delete(self, key: ChunkKey) -> bool:
        """Remove a chunk's KV; returns whether there was any."""
        return self.blobs.delete(key)

    def put_profile(self, profile: EncodingProfile) -> None:
        """Record a profile, never to be replaced; does nothing when it is recorded."""
        self.trust.confirm()
        records = {RECORD_PREFIX + profile.digest: self.trust.seal_record(profile.to_json()), **self.trust.key_record()}
        for name, there in zip(records, self.blobs.contains(list(records)), strict=True):
            if not there:
                self.blobs.put(name, records[name])
        self._recorded.add(profile.digest)

    def profile(self, digest: str) -> EncodingProfile | None:
        """Return the profile of that digest, or None; a damaged record is reported, quarantined and missing."""
        name = RECORD_PREFIX + digest
        view = self.blobs.get(name)
        if view is None:
            return None
        try:
            return self._read_profile(name, view)
        except StoreFormatError as error:
            self._recorded.discard(digest)
            self._report_damage(name, error)
            return None

    def profiles(self) -> list[EncodingProfile]:
        """Return every recorded profile."""
        names = [name for name in self.blobs.names(RECORD_PREFIX) if name != KEY_RECORD]
        digests = [name.removeprefix(RECORD_PREFIX) for name in names]
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
            tiers=self.blobs.tiers(),
            hits=counts["hits"],
            misses=counts["misses"],
            mismatched=counts["mismatched"],
            damaged=counts["damaged"],
        )

    def verify(self, progress: Progress | None = None, *, quarantine: bool = False) -> VerifyReport:
        """Check every byte of every chunk and profile, and make the bookkeeping agree with what is stored.

        Damaged blobs are listed; the next read of one quarantines it. No use is counted.

        Args:
            progress: told how many blobs are done, and how many there are.
            quarantine: take damaged blobs out of use now, so that the next ingest encodes their chunks again.
        """
        return scrub(self.blobs, self.check, progress, self._report_damage if quarantine else None)

    def check(self, name: str, view: Buffer) -> BlobHeader | None:
        """Check every byte of a blob or record without decoding it; returns a blob's header.

        Raises:
            StoreFormatError: any flaw, a missing MAC included.
            StoreVersionError: a version or codec that this program does not know.
        """
        if not name.startswith(RECORD_PREFIX):
            return check(view, ChunkKey(name), self._authenticator)
        if name == KEY_RECORD:
            self.trust.open_record(view)
        else:
            self._read_profile(name, view)
        return None

    def encode(self, key: ChunkKey, kv: ChunkKV, profile_digest: str, encode_seconds: float) -> list[Buffer]:
        """Return the bytes of a blob as this store writes it; stores nothing.

        Raises:
            StoreWriteError: the codec cannot hold these numbers.
        """
        return pack(key, kv, profile_digest, encode_seconds, self.codec, self._authenticator)

    def decode(self, key: ChunkKey, view: Buffer) -> ChunkKV:
        """Return the KV that the bytes of a blob hold, checked as this store checks them.

        Raises:
            StoreFormatError: any flaw, a missing MAC included.
            StoreVersionError: a version or codec that this program does not know.
        """
        return unpack(view, key, self._authenticator)

    def same_key(self, other: "KVStore") -> bool:
        """Return whether two stores accept each other's blobs: both have the same secret key, or none."""
        return self._authenticator == other._authenticator

    def close(self) -> None:
        """Close the blob store; KV that was returned stays valid."""
        self.blobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _opened(self, key: ChunkKey) -> Iterator[tuple[OpenBlob | None, str]]:
        """Give a blob, open for reading, and its tier."""
        if isinstance(self.blobs, OpensBlobs):
            with self.blobs.open_blob(key) as blob:
                yield blob, self.blobs.tier
        else:
            found = self.blobs.find(key)
            yield (None, "") if found is None else (ViewBlob(found.view), found.tier)

    def _found(self, key: ChunkKey, token_ids: "Sequence[int] | Tensor", found: Found | None) -> Hit | None:
        if found is None:
            self._count("misses")
            return None
        kv = self._checked(key, token_ids, lambda: self.decode(key, found.view))
        return None if kv is None else Hit(kv, found.tier, found.view.nbytes)

    def _checked(
        self, key: ChunkKey, token_ids: "Sequence[int] | Tensor", read: Callable[[], ChunkKV]
    ) -> ChunkKV | None:
        """Return what `read` reads; None, told and counted, where that is not the KV that was asked for."""
        try:
            kv = read()
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
        return kv

    def _report_damage(self, name: str, error: StoreFormatError) -> None:
        if isinstance(error, StoreTrustError):
            self.trust.confirm()
        _log.warning("blob %s is damaged (%s): quarantined and treated as missing", name, error)
        self.blobs.quarantine(name, str(error))
        self._count("damaged")

    def _count(self, *what: str) -> None:
        with self._lock:
            for name in what:
                self._counts[name] += 1

    def _read_profile(self, name: str, view: Buffer) -> EncodingProfile:
        profile = EncodingProfile.from_json(self.trust.open_record(view))
        if RECORD_PREFIX + profile.digest != name:
            raise StoreFormatError(f"profile record: its fields make the digest {profile.digest}")
        return profile
