"""Reference for `link_attention`: chosen rows of a causal attention, each over its own prefix of slots."""

from __future__ import annotations

import torch
from torch import Tensor


def link_attention_ref(queries: Tensor, keys: Tensor, values: Tensor, slots: Tensor, scale: float) -> Tensor:
    """Attention of row i over cache slots `0 … slots[i]`, in fp32 with an explicit mask.

    Args:
        queries: `[num_heads, Q, D]`, rotated.
        keys: `[H, N, D]`, rotated; `num_heads` is a multiple of H (grouped-query attention).
        values: `[H, N, D]`.
        slots: `[Q]` int64, the slot at which each row stands.
        scale: factor on the scores.

    Returns:
        `[num_heads, Q, D]` in the dtype of `queries`.
    """
    group = queries.shape[0] // keys.shape[0]
    wide_keys = keys.float().repeat_interleave(group, dim=0)
    wide_values = values.float().repeat_interleave(group, dim=0)
    scores = queries.float() @ wide_keys.transpose(-1, -2) * scale
    unseen = torch.arange(keys.shape[1], device=slots.device)[None, :] > slots[:, None]
    weights = scores.masked_fill(unseen, float("-inf")).softmax(dim=-1)
    return (weights @ wide_values).to(queries.dtype)
