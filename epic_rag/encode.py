"""Stage encode: prefill one chunk for the store, behind the compile prefix of the encoding profile."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from epic_rag.chunk_stats import ChunkStatistics
from epic_rag.kv_cache import KVCache
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.model import LanguageModel

_ROOM_TOKENS = 512


class Encoder:
    """Encodes chunks one after the other behind the same compile prefix, which is prefilled once.

    The prefix's KV is never stored: it only colours what the chunk's tokens see (docs/architecture.md, "Warm prefix").
    """

    def __init__(self, model: LanguageModel, prefix_ids: Sequence[int], *, statistics: bool = False) -> None:
        """Make an encoder; nothing is computed yet.

        Args:
            model: the language model.
            prefix_ids: the compile prefix.
            statistics: measure what attention the chunk's tokens receive, for eviction. Keys and values are the same to
                the bit with and without, so this is no part of the encoding profile.
        """
        self._statistics = statistics
        self._model = model
        self._prefix_ids = tuple(prefix_ids)
        self._cache: KVCache | None = None
        self._lock = threading.Lock()

    @property
    def model(self) -> LanguageModel:
        """The language model."""
        return self._model

    def encode(self, token_ids: Sequence[int]) -> ChunkKV:
        """Prefill a chunk.

        Args:
            token_ids: the chunk's T tokens, at least one.

        Returns:
            Keys before RoPE and values, `[L, H, T, D]` each, and the statistics if they are wanted, on the CPU.
        """
        start, stop = len(self._prefix_ids), len(self._prefix_ids) + len(token_ids)
        with self._lock:
            cache = self._with_room(stop)
            captured: list[torch.Tensor] = []
            rows = self._model.positions(start, stop)
            scores = ChunkStatistics(start) if self._statistics else None
            self._model.forward(self._model.ids(tuple(token_ids)), rows, cache, captured_keys=captured, scores=scores)
            values = cache.values[:, :, start:stop].to("cpu", copy=True)
        keys = torch.stack(captured).to("cpu")
        stats = None if scores is None else scores.finished().to("cpu")
        return ChunkKV(keys, values, torch.tensor(token_ids, dtype=torch.int32), stats)

    def _with_room(self, num_tokens: int) -> KVCache:
        """The cache with the prefix in its first slots and room for `num_tokens` in all."""
        if self._cache is None or self._cache.capacity < num_tokens:
            cache = self._model.new_cache(max(num_tokens, len(self._prefix_ids) + _ROOM_TOKENS))
            if self._prefix_ids:
                ids = self._model.ids(self._prefix_ids)
                self._model.forward(ids, self._model.positions(0, len(self._prefix_ids)), cache)
            self._cache = cache  # only now: an interrupted prefill must not be taken for a whole one
        return self._cache
