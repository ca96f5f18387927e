"""Stage load: the KV of a prompt's chunks, from the store where it is there, encoded on the fly where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from epic_rag.encode import Encoder
from epic_rag.kvstore.errors import StoreError
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.prefetch import Prefetch
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.reports import Hit
from epic_rag.kvstore.single_flight import SingleFlight
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.prompt import Prompt

ENCODED = "encoded"
"""The tier of KV that no store had."""


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """One chunk's KV and where it came from.

    Attributes:
        kv: keys before RoPE and values, `[L, H, T, D]`.
        key: its key in the store.
        tier: `memory`, `disk`, … or `encoded`.
    """

    kv: ChunkKV
    key: ChunkKey
    tier: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The KV of a prompt: of its prefix first (where it has one), then of every chunk.

    Attributes:
        chunks: in the prompt's order.
        warnings: what went wrong with the store; the answer does not suffer.
    """

    chunks: tuple[LoadedChunk, ...]
    warnings: tuple[str, ...]


def load(prompt: Prompt, prefix_loader: Loader, loader: Loader) -> Loaded:
    """Load a prompt's stored KV. The store is asked once for all of it, and what it lacks is encoded.

    A store that fails in any way never costs the answer: its chunks are encoded again.

    Args:
        prompt: cut into prefix, chunks and suffix.
        prefix_loader: loads the prefix, which is exact at position 0.
        loader: loads the chunks under the store's encoding profile.
    """
    wanted = [(prefix_loader, prompt.prefix_ids)] if prompt.prefix_ids else []
    wanted += [(loader, chunk) for chunk in prompt.chunk_ids]
    pairs = [(one.key(token_ids), token_ids) for one, token_ids in wanted]
    warnings: list[str] = []  # the first says it all
    hits: list[Hit | None] = [None] * len(pairs)
    try:
        hits = loader.store.get_many(pairs)
    except (StoreError, OSError) as error:
        warnings.append(f"the store could not be read: {error}")
    chunks = []
    for (one, token_ids), (key, _), hit in zip(wanted, pairs, hits, strict=True):
        if hit is not None:
            chunks.append(LoadedChunk(hit.kv, key, hit.tier))
            continue
        encoded = one.encode(token_ids)
        chunks.append(LoadedChunk(encoded.kv, key, ENCODED))
        if encoded.error is not None and not warnings:
            warnings.append(f"the store could not be written: {encoded.error}")
    return Loaded(tuple(chunks), tuple(warnings))


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """KV that was encoded on the fly.

    Attributes:
        kv: keys before RoPE and values, `[L, H, T, D]`.
        stored_bytes: bytes that were written; 0 when the store had it by then.
        error: why the store did not take it.
    """

    kv: ChunkKV
    stored_bytes: int = 0
    error: StoreError | OSError | None = None


class Loader:
    """The chunks of one encoding profile, in a store and out of an encoder; safe for threads."""

    def __init__(self, store: KVStore, profile: EncodingProfile, encoder: Encoder) -> None:
        self.store = store
        self.profile = profile
        self._encoder = encoder
        self._flights: SingleFlight[EncodedChunk] = SingleFlight()

    def key(self, token_ids: Sequence[int]) -> ChunkKey:
        """The key of a chunk."""
        return chunk_key(self.profile, token_ids)

    def are_stored(self, chunks: Sequence[Sequence[int]]) -> list[bool]:
        """For each chunk whether the store holds its KV."""
        return self.store.contains([self.key(token_ids) for token_ids in chunks])

    def prefetch(self, chunks: Sequence[Sequence[int]]) -> Prefetch:
        """Start moving the KV of chunks that may be asked for into the store's fastest tier."""
        return self.store.prefetch([self.key(token_ids) for token_ids in chunks])

    def encode(self, token_ids: Sequence[int]) -> EncodedChunk:
        """Encode a chunk that the store lacks, and store it; threads that ask for the same one share one encoding."""
        key = self.key(token_ids)
        return self._flights.run(key, lambda: self._stored_meanwhile(key, token_ids) or self._encode(key, token_ids))

    def _stored_meanwhile(self, key: ChunkKey, token_ids: Sequence[int]) -> EncodedChunk | None:
        """What another thread stored between this one's look into the store and its turn to encode."""
        try:
            hit = self.store.get(key, token_ids) if self.store.contains([key])[0] else None
        except (StoreError, OSError):
            return None
        return None if hit is None else EncodedChunk(hit.kv)

    def _encode(self, key: ChunkKey, token_ids: Sequence[int]) -> EncodedChunk:
        began = perf_counter()
        kv = self._encoder.encode(token_ids)
        seconds = perf_counter() - began
        try:
            return EncodedChunk(kv, self.store.put(key, kv, profile=self.profile, encode_seconds=seconds))
        except (StoreError, OSError) as error:
            return EncodedChunk(kv, error=error)
