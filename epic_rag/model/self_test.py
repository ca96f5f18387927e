"""Proof at load that this very model can be linked: a few tokens, three equations."""

from __future__ import annotations

import torch
from torch import Tensor

from epic_rag.errors import UnsupportedModelError
from epic_rag.model.gate import FALLBACK_HINT
from epic_rag.model.language_model import LanguageModel

_NUM_TOKENS = 16
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 5e-2}
"""Largest allowed norm of the difference over the norm of the centred logits. A wrong layout or mask gives about 1;
rounding alone gives up to 0.1 in bfloat16 (SmolLM2-135M and Qwen2.5-0.5B; 1e-5 in float32)."""


def self_test(model: LanguageModel) -> None:
    """Check that chosen rows with our rotation compute what the model computes by itself.

    1. All rows through our hooks = the model's own prefill.
    2. The same tokens at another offset give the same logits and, in layer 0, the same keys before RoPE.
    3. A first half taken from the cache and a second half computed = all rows.

    Raises:
        UnsupportedModelError: says which equation failed and by how much.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.hf_model.config.vocab_size)
    ids = torch.randint(0, vocabulary, (_NUM_TOKENS,), generator=generator).to(model.device)
    with torch.inference_mode():
        own = model.hf_model(input_ids=ids[None], use_cache=False).logits[0].float()
    keys: list[Tensor] = []
    shifted_keys: list[Tensor] = []
    whole = _rows(model, ids, 0, keys)
    shifted = _rows(model, ids, 37, shifted_keys)
    halves = _halves(model, ids)
    _compare(model, "rows with our rotation differ from the model's own prefill", whole, own)
    _compare(model, "the same tokens at another offset give other logits", shifted, whole)
    _compare(model, "keys before RoPE depend on the position", shifted_keys[0].float(), keys[0].float())
    _compare(
        model,
        "computing the second half over the cached first half differs from a prefill",
        halves,
        whole[_NUM_TOKENS // 2 :],
    )


def _rows(model: LanguageModel, ids: Tensor, offset: int, keys: list[Tensor]) -> Tensor:
    cache = model.new_cache(_NUM_TOKENS)
    positions, slots = model.positions(offset, offset + _NUM_TOKENS), model.positions(0, _NUM_TOKENS)
    return model.forward(ids, positions, cache, slots=slots, logits_to_keep=_NUM_TOKENS, captured_keys=keys)


def _halves(model: LanguageModel, ids: Tensor) -> Tensor:
    cache, half = model.new_cache(_NUM_TOKENS), _NUM_TOKENS // 2
    model.forward(ids[:half], model.positions(0, half), cache)
    return model.forward(ids[half:], model.positions(half, _NUM_TOKENS), cache, logits_to_keep=half)


def _compare(model: LanguageModel, failure: str, got: Tensor, expected: Tensor) -> None:
    spread = (expected - expected.mean()).norm().clamp_min(1e-12)
    error = float((got - expected).norm() / spread)
    allowed = _TOLERANCE.get(model.dtype, 0.25)
    if not error <= allowed:  # also when it is not a number
        raise UnsupportedModelError(
            f"model '{model.name}' failed the self-test: {failure} (relative error {error:.3g}, allowed "
            f"{allowed:.3g}). Its attention or its RoPE is of a kind this version does not know; please report the "
            f"architecture '{model.hf_model.config.model_type}'; {FALLBACK_HINT}."
        )
