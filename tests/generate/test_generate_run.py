"""A prompt to its answer: with room for everything, token for token what transformers generates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import make_hf, make_tiny, make_tokenizer

from epic_rag.decode import DecodeOptions
from epic_rag.errors import PromptError, UnsupportedModelError
from epic_rag.evict import KVBudget
from epic_rag.generate import GenerateOptions, Generation, generate
from epic_rag.model import LanguageModel
from epic_rag.model.plain import PlainModel

ROOT = Path(__file__).resolve().parents[2]
IDS = torch.randint(3, 250, (50,), generator=torch.Generator().manual_seed(2)).tolist()
MODES = ["encoding", "decoding", "auto"]


def ordinary(model: LanguageModel, ids: list[int], num_tokens: int) -> str:
    """What transformers' own generate answers."""
    kwargs = {"do_sample": False, "max_new_tokens": num_tokens, "eos_token_id": sorted(model.eos_ids)}
    out = model.hf_model.generate(torch.tensor([ids]), **kwargs)[0, len(ids) :].tolist()
    return model.tokenizer.decode([token for token in out if token not in model.eos_ids])


def answer(model: LanguageModel, ids: list[int], options: GenerateOptions) -> str:
    return "".join(piece.text for piece in generate(model, ids, options))


def budgeted(mode: str, budget: int, compat: str | None = None, **decode: object) -> GenerateOptions:
    how = DecodeOptions(**{"max_tokens": 16, **decode})
    return GenerateOptions("roco", KVBudget(tokens=budget), mode, 8, compat, how)


@pytest.mark.parametrize("case", ["llama", "gpt_neox", "glm4"])
def test_with_room_for_everything_the_answer_is_the_ordinary_one(case: str) -> None:
    model = make_tiny(case)
    expected = ordinary(model, IDS, 16)
    assert answer(model, IDS, GenerateOptions(decode=DecodeOptions(max_tokens=16))) == expected
    for mode in MODES:
        assert answer(model, IDS, budgeted(mode, 100)) == expected
        assert answer(model, IDS, budgeted(mode, 100, "easykv")) == expected


@pytest.mark.model
def test_with_room_for_everything_the_real_model_answers_as_ever(smollm_fp32: LanguageModel) -> None:
    text = (ROOT / "examples/documents/science/telescope-manual.rst").read_text(encoding="utf-8")
    ids = smollm_fp32.tokenizer.encode(text)[:100]
    expected = ordinary(smollm_fp32, ids, 10)
    assert len(expected) > 20
    for compat in (None, "easykv"):
        assert answer(smollm_fp32, ids, budgeted("auto", 200, compat, max_tokens=10)) == expected


def test_the_report_tells_what_it_took(tiny_llama: LanguageModel) -> None:
    generation = Generation(tiny_llama, IDS, budgeted("auto", 20))
    pieces = list(generation)
    report = generation.report()
    assert (report.budget_tokens, report.prompt_tokens, report.kept_tokens, report.peak_slots) == (20, 50, 20, 28)
    assert report.answer_tokens == pieces[-1].num_tokens <= 16
    assert report.peak_bytes == 28 * tiny_llama.kv_bytes_per_token
    assert report.full_bytes == 65 * tiny_llama.kv_bytes_per_token
    assert 0 < report.ttft_seconds == report.prefill_seconds
    assert report.prefill_seconds + report.decode_seconds <= report.total_seconds


@pytest.mark.parametrize("mode", MODES)
def test_a_tight_budget_changes_the_answer_and_sampling_is_repeatable(tiny_llama: LanguageModel, mode: str) -> None:
    options = budgeted(mode, 4, temperature=1.0, seed=3)
    first = answer(tiny_llama, IDS, options)
    assert first == answer(tiny_llama, IDS, options)
    assert first != answer(tiny_llama, IDS, budgeted(mode, 100, temperature=1.0, seed=3))


def test_the_answer_ends_at_a_stop_string(tiny_llama: LanguageModel) -> None:
    whole = answer(tiny_llama, IDS, budgeted("auto", 20))
    stop = whole[5:7]
    assert answer(tiny_llama, IDS, budgeted("auto", 20, stop=(stop,))) == whole[: whole.index(stop)]


def test_a_share_and_bytes_are_budgets_too(tiny_llama: LanguageModel) -> None:
    for budget in (KVBudget(ratio=0.3), KVBudget(size_bytes=15 * tiny_llama.kv_bytes_per_token)):
        generation = Generation(tiny_llama, IDS, GenerateOptions("tova", budget, decode=DecodeOptions(max_tokens=2)))
        assert len(list(generation)) >= 1
        assert generation.report().kept_tokens == generation.report().budget_tokens == 15


def test_what_cannot_be_done_is_refused_before_anything_runs(tiny_llama: LanguageModel) -> None:
    with pytest.raises(PromptError, match="there is no text"):
        generate(tiny_llama, [])
    with pytest.raises(PromptError, match="4000 tokens and the answer up to 128; the model knows 4096 positions"):
        generate(tiny_llama, [5] * 4000)
    plain = PlainModel(make_hf("llama"), make_tokenizer(), "tiny", "for a test")
    with pytest.raises(UnsupportedModelError, match="'tiny' runs whole prompts only"):
        generate(plain, IDS)
