"""Reference for `attention_scores`: what the slots receive from the rows of one causal attention."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_scores_ref(
    queries: Tensor, keys: Tensor, slots: Tensor, scale: float, start: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Column sums of the attention of rows that stand at `slots`, in fp32 with an explicit mask.

    The probabilities of a group of query heads are averaged first: what is summed is the attention that a KV head's
    slot receives, once a row.

    Args:
        queries: `[num_heads, Q, D]`, rotated.
        keys: `[H, N, D]`, rotated; `num_heads` is a multiple of H (grouped-query attention).
        slots: `[Q]` int64, strictly ascending; row i attends slots `0 … slots[i]`.
        scale: factor on the scores.
        start: first slot that is reported; all are attended.

    Returns:
        Sums, sums of squares and the last row's probabilities, `[H, N - start]` each, and the number of rows that see
        each slot, `[N - start]`; fp32.
    """
    group = queries.shape[0] // keys.shape[0]
    scores = queries.float() @ keys.float().repeat_interleave(group, dim=0).transpose(-1, -2) * scale
    unseen = torch.arange(keys.shape[1], device=slots.device)[None, :] > slots[:, None]
    scores = scores.masked_fill(unseen, float("-inf"))
    weights = torch.exp(scores - scores.logsumexp(dim=-1, keepdim=True))
    received = weights.view(keys.shape[0], group, *weights.shape[1:]).mean(dim=1)[..., start:]
    counts = (~unseen).sum(dim=0)[start:].float()
    return received.sum(dim=1), received.square().sum(dim=1), received[:, -1], counts
