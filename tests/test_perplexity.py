"""Perplexity under a budget, against transformers' own loss."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_models import make_tiny

from epic_rag.errors import ConfigError, PromptError
from epic_rag.evict import KVBudget
from epic_rag.model import LanguageModel
from epic_rag.perplexity import perplexity

ROOT = Path(__file__).resolve().parent.parent
IDS = torch.randint(3, 250, (61,), generator=torch.Generator().manual_seed(4)).tolist()


def own_losses(model: LanguageModel, ids: list[int], bias: torch.Tensor | None = None) -> torch.Tensor:
    """Losses of all tokens but the first from one forward of transformers' own."""
    mask = None if bias is None else bias[None, None]
    with torch.inference_mode():
        logits = model.hf_model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0].float()
    return F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


@pytest.mark.parametrize("case", ["llama", "phi", "helium"])
@pytest.mark.parametrize("stride", [1, 7, 61, 200])
def test_without_a_budget_it_is_the_ordinary_perplexity(case: str, stride: int) -> None:
    model = make_tiny(case)
    expected = own_losses(model, IDS)
    for policy, budget in (("full", None), ("roco", KVBudget(tokens=61)), ("h2o", KVBudget(ratio=1.0))):
        found = perplexity(model, IDS, policy, budget, stride)
        torch.testing.assert_close(found.losses, expected, atol=1e-3, rtol=1e-3)
        assert found.num_tokens == 60
        assert found.kept_tokens == found.peak_slots == 61
        assert found.perplexity == pytest.approx(math.exp(float(expected.double().mean())), rel=1e-3)


@pytest.mark.model
def test_the_real_model_has_its_ordinary_perplexity(smollm_fp32: LanguageModel) -> None:
    text = (ROOT / "examples/documents/science/telescope-manual.rst").read_text(encoding="utf-8")
    ids = smollm_fp32.tokenizer.encode(text)[:120]
    found = perplexity(smollm_fp32, ids, "full")
    torch.testing.assert_close(found.losses, own_losses(smollm_fp32, ids), atol=1e-3, rtol=1e-3)
    tight = perplexity(smollm_fp32, ids, "roco", KVBudget(ratio=0.25), 32)
    assert 0 < abs(tight.nll - found.nll) < 0.5
    assert (tight.kept_tokens, tight.peak_slots) == (30, 62)


def test_a_budget_of_recent_tokens_is_a_sliding_window_with_sinks() -> None:
    """With a stride of 1, token t sees the sinks, the latest before it, and itself."""
    model, budget = make_tiny("llama"), 11
    bias = torch.full((61, 61), float("-inf")).triu(1)
    for token in range(budget + 1, 61):
        bias[token, 4 : token - (budget - 4)] = float("-inf")
    model.hf_model.set_attn_implementation("eager")
    expected = own_losses(model, IDS, bias)
    model.hf_model.set_attn_implementation("epic_rag")
    found = perplexity(model, IDS, "recency", KVBudget(tokens=budget), 1)
    torch.testing.assert_close(found.losses, expected, atol=1e-3, rtol=1e-3)
    assert (found.kept_tokens, found.peak_slots) == (11, 12)


@pytest.mark.parametrize("policy", ["roco", "h2o", "tova", "recency", "random"])
def test_every_policy_measures_a_tight_budget(tiny_llama: LanguageModel, policy: str) -> None:
    found = perplexity(tiny_llama, IDS, policy, KVBudget(tokens=1), 3)
    assert torch.isfinite(found.losses).all()
    assert (found.num_tokens, found.kept_tokens, found.peak_slots) == (60, 1, 4)


def test_what_cannot_be_measured_is_refused_in_words(tiny_llama: LanguageModel) -> None:
    with pytest.raises(PromptError, match="at least 2 tokens: the first one is not predicted"):
        perplexity(tiny_llama, [5], "full")
    with pytest.raises(PromptError, match="the text has 4097 tokens; the model knows 4096 positions"):
        perplexity(tiny_llama, [5] * 4097, "full")
    with pytest.raises(ConfigError, match="the stride must be at least 1 token, got 0"):
        perplexity(tiny_llama, IDS, "full", None, 0)
    with pytest.raises(ConfigError, match="policy 'roco' needs --budget"):
        perplexity(tiny_llama, IDS, "roco")
