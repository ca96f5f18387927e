"""KV at the beginning of a prompt: exact whatever follows, so it can be cut, and computed further."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.link import place
from epic_rag.model import LanguageModel


def first(kv: ChunkKV, num_tokens: int) -> ChunkKV:
    """KV of a prefix's first tokens; the memory is the tokens' own, so that the rest can go."""
    if num_tokens == kv.num_tokens:
        return kv
    keys, values = kv.keys[:, :, :num_tokens].clone(), kv.values[:, :, :num_tokens].clone()
    return ChunkKV(keys, values, kv.token_ids[:num_tokens].clone())


def extended(model: LanguageModel, token_ids: Sequence[int], begun: ChunkKV | None) -> ChunkKV:
    """Prefill a prompt's beginning from where its KV is there.

    Args:
        model: the language model.
        token_ids: T tokens from position 0.
        begun: KV of the first of them; None: compute all.

    Returns:
        Keys before RoPE and values, `[L, H, T, D]` each, on the CPU.
    """
    start, stop = 0 if begun is None else begun.num_tokens, len(token_ids)
    if begun is not None and start == stop:
        return begun
    cache = model.new_cache(stop)
    if begun is not None and start:
        place(model, [begun], cache)
    captured: list[torch.Tensor] = []
    model.forward(model.ids(tuple(token_ids[start:])), model.positions(start, stop), cache, captured_keys=captured)
    keys, values = torch.stack(captured).to("cpu"), cache.values[:, :, start:stop].to("cpu", copy=True)
    if begun is not None and start:
        keys, values = torch.cat([begun.keys, keys], dim=2), torch.cat([begun.values, values], dim=2)
    return ChunkKV(keys, values, torch.tensor(token_ids, dtype=torch.int32))
