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
from epic_rag.prefix import extended, first
from epic_rag.prompt import Prompt, num_shared

ENCODED = "encoded"
"""The tier of KV that no store had."""


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """One chunk's KV and where it came from.

    Attributes:
        kv: keys before RoPE and values, `[L, H, T, D]`.
        key: its key in the store.
        tier: `memory`, `disk`, … or `encoded`.
        num_loaded: tokens whose KV the store had.
    """

    kv: ChunkKV
    key: ChunkKey
    tier: str
    num_loaded: int


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
    beginning = _beginning(prompt, prefix_loader)
    wanted = [(prefix_loader, beginning)] if beginning else []
    wanted += [(loader, chunk) for chunk in prompt.chunk_ids]
    pairs = [(one.key(token_ids), token_ids) for one, token_ids in wanted]
    warnings: list[str] = []  # the first says it all
    hits: list[Hit | None] = [None] * len(pairs)
    try:
        hits = loader.store.get_many(pairs)
    except (StoreError, OSError) as error:
        warnings.append(f"the store could not be read: {error}")
    chunks = []
    for number, ((one, token_ids), (key, _), hit) in enumerate(zip(wanted, pairs, hits, strict=True)):
        if number == 0 and prompt.beginnings:
            encoded, num_loaded = one.extend(prompt, None if hit is None else hit.kv)
            chunks.append(LoadedChunk(encoded.kv, key, ENCODED if hit is None else hit.tier, num_loaded))
        elif hit is not None:
            chunks.append(LoadedChunk(hit.kv, key, hit.tier, hit.kv.num_tokens))
            continue
        else:
            encoded = one.encode(token_ids)
            chunks.append(LoadedChunk(encoded.kv, key, ENCODED, 0))
        if encoded.error is not None and not warnings:
            warnings.append(f"the store could not be written: {encoded.error}")
    return Loaded(tuple(chunks), tuple(warnings))


def _beginning(prompt: Prompt, prefix_loader: Loader) -> tuple[int, ...]:
    """The longest beginning of a conversation that the store holds, or the shortest; otherwise the prompt's prefix."""
    if not prompt.beginnings:
        return prompt.prefix_ids
    try:
        stored = prefix_loader.are_stored(prompt.beginnings)
    except (StoreError, OSError):
        return prompt.beginnings[-1]  # reading will fail alike, and tell
    pairs = zip(prompt.beginnings, stored, strict=True)
    return next((ids for ids, there in pairs if there), prompt.beginnings[-1])


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

    def extend(self, prompt: Prompt, begun: ChunkKV | None) -> tuple[EncodedChunk, int]:
        """Compute a conversation's prefix behind the beginning that is there, and store it as far as the last answer.

        Args:
            prompt: with its `beginnings`.
            begun: KV of one of them, exact at position 0; None: none is there.

        Returns:
            KV of the whole prefix, and how many of its tokens were there. Threads that extend alike share the work.
        """
        num_loaded = 0 if begun is None else num_shared(prompt.prefix_ids, begun.token_ids.tolist())
        begun = begun if num_loaded else None
        one = f"{self.key(prompt.prefix_ids)} from {num_loaded}"
        return self._flights.run(one, lambda: self._extend(prompt, begun, num_loaded)), num_loaded

    def _extend(self, prompt: Prompt, begun: ChunkKV | None, num_loaded: int) -> EncodedChunk:
        began = perf_counter()
        kv = extended(self._encoder.model, prompt.prefix_ids, None if begun is None else first(begun, num_loaded))
        seconds = perf_counter() - began
        last = prompt.beginnings[0]
        if len(last) <= num_loaded or last != prompt.prefix_ids[: len(last)]:
            return EncodedChunk(kv)
        return self._put(self.key(last), first(kv, len(last)), seconds, whole=kv)

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
        return self._put(key, kv, perf_counter() - began)

    def _put(self, key: ChunkKey, kv: ChunkKV, seconds: float, whole: ChunkKV | None = None) -> EncodedChunk:
        """Store KV; `whole`: what it is the beginning of, to be returned."""
        given = kv if whole is None else whole
        try:
            return EncodedChunk(given, self.store.put(key, kv, profile=self.profile, encode_seconds=seconds))
        except (StoreError, OSError) as error:
            return EncodedChunk(given, error=error)
