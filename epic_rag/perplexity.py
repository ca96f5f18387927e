"""How well a model predicts a text while its KV is kept within a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from epic_rag.config import DEFAULT_STRIDE_TOKENS
from epic_rag.errors import PromptError
from epic_rag.evict import KVBudget, check_stride, unseeded_policy
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.generate.options import check_budget
from epic_rag.generate.run import check_prompt
from epic_rag.model import LanguageModel


@dataclass(frozen=True, slots=True, eq=False)
class Perplexity:
    """The loss of every token of a text but the first.

    Attributes:
        losses: `[num_tokens]` fp32 on the CPU, negative log-likelihoods in nats, in the order of the text.
        kept_tokens: slots in use at the end.
        peak_slots: most slots ever in use.
        seconds: for all of it.
    """

    losses: Tensor
    kept_tokens: int
    peak_slots: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens that were predicted."""
        return self.losses.numel()

    @property
    def nll(self) -> float:
        """Mean loss of a token, in nats."""
        return float(self.losses.double().mean())

    @property
    def perplexity(self) -> float:
        """The number whose logarithm is the mean loss."""
        return math.exp(self.nll)


def perplexity(
    model: LanguageModel,
    token_ids: Sequence[int],
    policy: str,
    budget: KVBudget | None = None,
    stride_tokens: int = DEFAULT_STRIDE_TOKENS,
) -> Perplexity:
    """Perplexity of a text, teacher-forced: its own tokens are taken, chunk by chunk, and evicted after each chunk.

    A token sees the slots that stayed and the tokens before it in its chunk. Positions are the true ones. Without a
    budget, or with one that holds the text, this is the ordinary perplexity.

    Args:
        model: the language model.
        token_ids: the text, at least 2 tokens.
        policy: which tokens are evicted; `full`: none.
        budget: slots that stay after each chunk; its ratio is one of the text's tokens; None: all.
        stride_tokens: tokens of a chunk.

    Raises:
        PromptError: fewer than 2 tokens, or more than the model knows positions.
        ConfigError: unknown policy, a stride below 1, or a budget that fits neither policy nor model.
    """
    check_budget(budget)
    chosen = unseeded_policy(policy, budget)
    check_stride(stride_tokens)
    check_prompt(model, len(token_ids))
    if len(token_ids) < 2:
        raise PromptError("perplexity needs a text of at least 2 tokens: the first one is not predicted")
    num_tokens = len(token_ids)
    budget_tokens = None if budget is None else budget.resolve(num_tokens, model.kv_bytes_per_token)
    kv = BoundedKV(model, Bounds.of_prompt(num_tokens, budget_tokens, stride_tokens), chosen, stride_tokens)
    ids, losses, began = model.ids(list(token_ids)), [], perf_counter()
    for start in range(0, num_tokens, stride_tokens):
        chunk = token_ids[start : start + stride_tokens]
        targets = ids[start + 1 : start + 1 + len(chunk)]
        logits = kv.extend(chunk, logits_to_keep=len(chunk))[: targets.numel()]
        losses.append(F.cross_entropy(logits, targets, reduction="none").cpu())
    return Perplexity(torch.cat(losses), kv.cache.length, kv.peak_slots, perf_counter() - began)
