"""Log probabilities of an answer from transformers' own forward: no cache, no rotation, no row pass of ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt


def full_log_probabilities(model: LanguageModel, prompt: Prompt, answer: Sequence[int]) -> torch.Tensor:
    """`[A, V]` fp64 behind the whole prompt, in one plain forward over prompt and answer."""
    ids = torch.tensor([[*prompt.token_ids, *answer]])
    with torch.inference_mode():
        logits = model.hf_model(input_ids=ids, use_cache=False).logits[0]
    return logits[-len(answer) - 1 : -1].double().log_softmax(-1)


@dataclass(frozen=True)
class Token:
    """One row of the long sequence. A stored token sees its own group, the others see the prompt's slots."""

    id: int
    position: int
    group: int
    is_final: bool


def linked_log_probabilities(
    model: LanguageModel,
    prompt: Prompt,
    behind: Sequence[int],
    chosen: Collection[int],
    answer: Sequence[int],
) -> torch.Tensor:
    """`[A, V]` fp64 behind a linked prompt, in one forward with an explicit mask.

    Each token of a chunk stands there as it was stored: behind a copy of the compile prefix of its chunk's own, seeing
    nothing but those; a token that is recomputed stands there a second time, and sees of every earlier position what
    linking leaves there. RoPE is relative, so everything stands at its position in the prompt, moved by a constant.
    """
    moved = len(behind)
    tokens: list[Token] = []
    final: dict[int, int] = {}  # position -> which row others see there
    for position, token in enumerate(prompt.prefix_ids):
        final[position] = len(tokens)
        tokens.append(Token(token, position, -1, True))
    for group, (start, chunk) in enumerate(zip(prompt.offsets, prompt.chunk_ids, strict=True)):
        tokens += [Token(token, start - moved + i, group, False) for i, token in enumerate(behind)]
        for position, token in enumerate(chunk, start):
            final[position] = len(tokens)
            tokens.append(Token(token, position, group, False))
    whole = [*prompt.token_ids, *answer]
    for position in [*sorted(chosen), *range(prompt.suffix_start, len(whole))]:
        final[position] = len(tokens)
        tokens.append(Token(whole[position], position, -1, True))
    seen = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    for row, token in enumerate(tokens):
        if token.is_final:
            seen[row, [final[position] for position in range(token.position)]] = True
            seen[row, row] = True
        else:
            own = [i for i in range(row + 1) if tokens[i].group == token.group and not tokens[i].is_final]
            seen[row, own] = True
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        logits = model.hf_model(
            input_ids=torch.tensor([[token.id for token in tokens]]),
            position_ids=torch.tensor([[token.position + moved for token in tokens]]),
            attention_mask=mask[None, None],
            use_cache=False,
        ).logits[0]
    last = [final[position] for position in range(prompt.num_tokens - 1, len(whole) - 1)]
    return logits[last].double().log_softmax(-1)
