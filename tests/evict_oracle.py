"""Eviction decided from explicit histories: every attention value a token ever received, and plain sorting.

Nothing here is shared with the product, which keeps running sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class LogitRows:
    """Attention over whatever is cached, from the logits of a full pass.

    Attributes:
        logits: `[H, G, n, n]`, G query heads for each of H KV heads.
        prompt: so many first tokens are always cached and never named.
    """

    logits: NDArray[np.float64]
    prompt: int = 0

    def head(self, head: int, queries: range, cached: Sequence[int]) -> NDArray[np.float32]:
        """`[Q, N]` group means of the probabilities of one head."""
        columns = np.concatenate((np.arange(self.prompt), np.asarray(cached, dtype=np.int64)))
        rows = np.arange(queries.start, queries.stop)
        logits = self.logits[head][:, rows][:, :, columns]
        logits = np.where(columns[None, None, :] <= rows[None, :, None], logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)).mean(0)[:, self.prompt :].astype(np.float32)

    def __call__(self, queries: range, cached: Tensor) -> Tensor:
        """All heads, as the product asks for them."""
        return torch.from_numpy(np.stack([self.head(h, queries, row.tolist()) for h, row in enumerate(cached)]))


def random_rows(num_heads: int, num_tokens: int, prompt: int = 0, seed: int = 0) -> LogitRows:
    """Logits with heavy columns, bursts, a sink, and something near the diagonal, as attention has them."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(num_heads, 3, num_tokens, num_tokens)) * 1.5
    logits += generator.normal(size=(num_heads, 1, 1, num_tokens))
    distance = np.abs(np.arange(num_tokens)[:, None] - np.arange(num_tokens)[None, :])
    logits += 2.0 * np.exp(-distance / 5.0)
    bursty = generator.random((num_heads, 1, 1, num_tokens)) < 0.6  # small means, large stds: what protection is for
    burst = generator.random((num_heads, 1, num_tokens, num_tokens)) < 0.005
    logits += np.where(bursty, np.where(burst, 7.0, -6.0), 0.0)
    logits[..., 0] += 3.0
    return LogitRows(logits, prompt)


class History:
    """What each cached token of one head has received, value by value."""

    def __init__(self, num_tokens: int) -> None:
        self.cached: list[int] = []
        self.received = np.zeros((num_tokens, num_tokens))
        self.saw = np.zeros((num_tokens, num_tokens))

    def note(self, query: int, row: NDArray[np.float32]) -> None:
        visible = [token for token in self.cached if token <= query]
        self.received[query, visible] = row[: len(visible)]
        self.saw[query, visible] = 1.0

    def mean_and_std(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = max(self.cached) + 1
        received, saw = self.received[:rows, self.cached], self.saw[:rows, self.cached]
        mean = received.sum(0) / saw.sum(0)
        return mean, np.sqrt((np.square(received - mean) * saw).sum(0) / saw.sum(0))

    def drop(self, scope_size: int, count: int, sinks: int) -> list[int]:
        """Protects large stds, the last ten and the sinks; drops the smallest means of the others."""
        mean, std = self.mean_and_std()
        slots = range(len(self.cached))
        safe = {i for i in slots if i < sinks or i >= len(self.cached) - 10}
        rank = {i: (float("inf") if i in safe else std[i], i) for i in slots}
        scope = sorted(slots, key=rank.__getitem__)[:scope_size]
        gone = [self.cached[i] for i in sorted(scope, key=lambda i: (mean[i], rank[i]))[:count]]
        self.cached = [token for token in self.cached if token not in gone]
        return gone


def decoded(rows: LogitRows, head: int, start: int, stop: int, budget: int) -> list[list[int]]:
    """Mode decoding: only generated tokens are scored and dropped."""
    history, gone = History(stop), []
    for token in range(start, stop):
        history.cached.append(token)
        history.note(token, rows.head(head, range(token, token + 1), history.cached)[0])
        if len(history.cached) == budget + 1:
            gone.append(history.drop(budget - int(0.3 * budget), 1, sinks=0))
    return gone


def sizes(num_tokens: int, budget: float, stride: int) -> tuple[int, int]:
    """The limit and the final size of a prefill."""
    limit = (int(num_tokens * budget) if isinstance(budget, float) else budget) + stride
    return limit, max(size for size in range(limit + 1) if (num_tokens - size) % stride == 0)


def prefilled(
    rows: LogitRows, head: int, num_tokens: int, budget: float, stride: int, *, first: int, kept: bool, stop: int
) -> list[list[int]]:
    """Mode encoding, and with `stop` behind the prompt mode auto: one drop a generated token."""
    limit, final = sizes(num_tokens, budget, stride)
    history, gone = History(stop), []
    history.cached = list(range(first))
    if kept:
        for query, row in enumerate(rows.head(head, range(first), history.cached)):
            history.note(query, row)
    for start in range(first, num_tokens, stride):
        chunk = range(start, start + stride)
        history.cached += chunk
        if kept or len(history.cached) > final:
            for query, row in zip(chunk, rows.head(head, chunk, history.cached), strict=True):
                history.note(query, row)
        if len(history.cached) > final:
            gone.append(history.drop(max(limit - int(0.1 * limit) - 4, stride), stride, sinks=4))
    for token in range(num_tokens, stop):
        history.cached.append(token)
        history.note(token, rows.head(head, range(token, token + 1), history.cached)[0])
        gone.append(history.drop(limit - int(0.3 * limit), 1, sinks=0))
    return gone
