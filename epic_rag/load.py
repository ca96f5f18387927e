"""Stage load: the KV of a prompt's chunks, from the store where it is there, encoded on the fly where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from epic_rag.encode import Encoder
from epic_rag.kvstore.errors import StoreError
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.profile import EncodingProfile
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
    """Load a prompt's stored KV.

    Args:
        prompt: cut into prefix, chunks and suffix.
        prefix_loader: loads the prefix, which is exact at position 0.
        loader: loads the chunks under the store's encoding profile.
    """
    results = [prefix_loader.load(prompt.prefix_ids)] if prompt.prefix_ids else []
    results += [loader.load(chunk) for chunk in prompt.chunk_ids]
    warnings = dict.fromkeys(warning for _, warning in results if warning)  # each once
    return Loaded(tuple(chunk for chunk, _ in results), tuple(warnings))


class Loader:
    """Loads chunks of one encoding profile; what is missing is encoded and put into the store."""

    def __init__(self, store: KVStore, profile: EncodingProfile, encoder: Encoder) -> None:
        self.store = store
        self.profile = profile
        self._encoder = encoder

    def key(self, token_ids: Sequence[int]) -> ChunkKey:
        """The key of a chunk."""
        return chunk_key(self.profile, token_ids)

    def load(self, token_ids: Sequence[int]) -> tuple[LoadedChunk, str | None]:
        """The KV of one chunk, and a warning when the store failed.

        A store that fails in any way never costs the answer: the chunk is encoded again.
        """
        key, warning = self.key(token_ids), None
        try:
            hit = self.store.get(key, token_ids)
            if hit is not None:
                return LoadedChunk(hit.kv, key, hit.tier), None
        except (StoreError, OSError) as error:
            warning = f"the store could not be read: {error}"
        kv, seconds = self._encode(token_ids)
        try:
            self.store.put(key, kv, profile=self.profile, encode_seconds=seconds)
        except (StoreError, OSError) as error:
            warning = warning or f"the store could not be written: {error}"
        return LoadedChunk(kv, key, ENCODED), warning

    def are_stored(self, chunks: Sequence[Sequence[int]]) -> list[bool]:
        """For each chunk whether the store holds its KV."""
        return self.store.contains([self.key(token_ids) for token_ids in chunks])

    def encode_and_put(self, token_ids: Sequence[int]) -> int:
        """Encode a chunk and store it.

        Returns:
            Bytes written; 0 when another process was faster.

        Raises:
            StoreWriteError: the store cannot be written.
        """
        kv, seconds = self._encode(token_ids)
        return self.store.put(self.key(token_ids), kv, profile=self.profile, encode_seconds=seconds)

    def _encode(self, token_ids: Sequence[int]) -> tuple[ChunkKV, float]:
        began = perf_counter()
        kv = self._encoder.encode(token_ids)
        return kv, perf_counter() - began
