"""Models that cannot be linked, answering with full prefills on request."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from corpus import make_engine, write_corpus
from tiny_models import make_hf, make_tokenizer

from epic_rag.ask import AskOptions, ask
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine
from epic_rag.errors import UnsupportedModelError
from epic_rag.ingest import ingest
from epic_rag.kvstore.uri import open_store
from epic_rag.model import LanguageModel, load_model
from epic_rag.retrievers.index import PassageIndex

QUESTION = "What is fact 3 of the telescope worth?"
CASES = {
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 4096}),
    "sliding": ("mistral", {"sliding_window": 16}),
    "mamba": ("mamba", {"state_size": 4}),
}


def save(case: str, folder: Path) -> Path:
    architecture, settings = CASES[case]
    make_hf(architecture, **settings).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_transformers_itself_generates(case: str, tmp_path: Path) -> None:
    filled = make_engine(tmp_path / "store")
    ingest(filled, [write_corpus(tmp_path / "docs", 3)])
    filled.close()
    folder = save(case, tmp_path / "model")
    with pytest.raises(UnsupportedModelError):
        load_model(str(folder), cache_folder=tmp_path / "cache")
    model = load_model(str(folder), cache_folder=tmp_path / "cache", dtype="float32", allow_fallback=True)
    model.eos_ids = frozenset()
    engine = Engine(model, open_store(str(tmp_path / "store")), PassageIndex(tmp_path / "store" / "index"))
    entries = engine.store.stats().entries
    *_, answer = ask(engine, QUESTION, AskOptions(k=2, selector="lego:4", decode=DecodeOptions(max_tokens=6)))
    assert (answer.selector, answer.policy) == ("full", "full")  # type: ignore[union-attr]
    assert "cannot be linked" in answer.warnings[0]  # type: ignore[union-attr]
    assert answer.tokens.recomputed == answer.tokens.context  # type: ignore[union-attr]
    assert engine.store.stats().entries == entries, "nothing is written for a model that cannot be linked"
    assert generated(model, engine) == answer.answer  # type: ignore[union-attr]


def generated(model: LanguageModel, engine: Engine) -> str:
    from epic_rag.prompt import build_prompt
    from epic_rag.retrieve import retrieve

    found = [passage.token_ids for passage in retrieve(engine, QUESTION, 2)]
    prompt, _ = build_prompt(engine.frame, model.tokenizer.encode(QUESTION), found, 4000)
    model.hf_model.generation_config.eos_token_id = None
    ids = model.ids(prompt.token_ids)[None]
    out = model.hf_model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    return model.tokenizer.decode(out[0, ids.shape[1] :].tolist()).strip()


def test_a_model_that_only_fails_the_self_test_falls_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    make_hf("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    monkeypatch.setattr("epic_rag.model.self_test._TOLERANCE", {torch.float32: -1.0})
    with pytest.raises(UnsupportedModelError, match="failed the self-test"):
        load_model(str(folder), cache_folder=tmp_path / "cache", dtype="float32")
    model = load_model(str(folder), cache_folder=tmp_path / "cache", dtype="float32", allow_fallback=True)
    assert not model.can_link
    assert "failed the self-test" in model.reason
