"""The whole way with the real small model and documents that ship with the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from corpus import make_engine

from epic_rag.ask import AskOptions, ask
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.model import LanguageModel
from epic_rag.schema import Answer

ROOT = Path(__file__).resolve().parent.parent
QUESTION = "What is the focal length of the Merrin 140 telescope?"

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine(smollm_fp32: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Six documents, in float32, so that equal ways give equal tokens."""
    folder = tmp_path_factory.mktemp("real")
    shutil.copytree(ROOT / "examples" / "documents" / "science", folder / "science")
    for surplus in sorted((folder / "science").iterdir())[6:]:
        if surplus.name != "telescope-manual.rst":
            surplus.unlink()
    engine = make_engine(folder / "store", smollm_fp32)
    report = ingest(engine, [folder / "science"])
    assert report.encoding == "warm:600"
    assert report.errors == []
    assert report.encoded == report.chunks
    return engine


def answer(engine: Engine, selector: str, max_tokens: int = 16) -> Answer:
    *_, last = ask(engine, QUESTION, AskOptions(k=4, selector=selector, decode=DecodeOptions(max_tokens=max_tokens)))
    assert isinstance(last, Answer)
    return last


def test_the_right_document_is_found_and_nothing_is_encoded_again(engine: Engine) -> None:
    got = answer(engine, "lego:4")
    assert got.sources[0].source.endswith("telescope-manual.rst")
    assert got.tokens.encoded == 0
    assert got.tokens.loaded > 0.9 * got.tokens.context
    assert got.answer.strip()


def test_recomputing_all_context_is_a_full_prefill(engine: Engine) -> None:
    assert answer(engine, "lego:100000").answer == answer(engine, "full").answer


def test_a_warm_encoding_is_closer_to_a_full_prefill_than_an_isolated_one(engine: Engine) -> None:
    """The picture of benchmarks/results/quality_xquad.json in small: KL at the first answer token, four questions."""
    from epic_rag.encode import Encoder
    from epic_rag.link import link
    from epic_rag.prompt import build_prompt
    from epic_rag.retrieve import retrieve
    from epic_rag.selectors import parse_selector

    model, warm = engine.model, engine.loader.profile.prefix_ids
    questions = (
        QUESTION,
        "How long should the telescope cool before use?",
        "When should the fan behind the mirror be off?",
        "How is the mirror collimated?",
    )
    total = {"isolated": 0.0, "warm": 0.0}
    for question in questions:
        found = [passage.token_ids for passage in retrieve(engine, question, 4)]
        prompt, _ = build_prompt(engine.frame, model.tokenizer.encode(question), found, 4000)
        full = link(model, prompt, [], parse_selector("full"), spare_tokens=0).logits[-1].log_softmax(-1)
        for name, behind in (("isolated", ()), ("warm", warm)):
            encoder = Encoder(model, behind)
            stored = [Encoder(model, ()).encode(prompt.prefix_ids), *map(encoder.encode, prompt.chunk_ids)]
            linked = link(model, prompt, stored, parse_selector("none"), spare_tokens=0).logits[-1].log_softmax(-1)
            total[name] += float((full.exp() * (full - linked)).sum())
    print(total)
    assert 0 < total["warm"] < total["isolated"]


def test_our_full_prefill_is_transformers_own_in_bfloat16(smollm: LanguageModel) -> None:
    ids = smollm.ids(smollm.tokenizer.encode((ROOT / "README.md").read_text(encoding="utf-8"))[:400])
    ours = smollm.forward(ids, smollm.positions(0, ids.numel()), smollm.new_cache(ids.numel()), logits_to_keep=400)
    with torch.inference_mode():
        own = smollm.hf_model(ids[None], use_cache=False).logits[0].float()
    kl = (own.log_softmax(-1).exp() * (own.log_softmax(-1) - ours.log_softmax(-1))).sum(-1)
    assert float(kl.mean()) < 0.01


def test_the_demo_runs_and_a_second_run_encodes_nothing(smollm: LanguageModel, tmp_path: Path) -> None:
    """`make demo` on a copy of the project with three documents."""
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for document in sorted((tmp_path / "examples" / "documents").rglob("*.*")):
        if document.name not in {"telescope-manual.rst", "bakery-bread-process.md"}:
            document.unlink()
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "examples/demo.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    assert "2 added" in outputs[0]
    assert "nothing had to be encoded" in outputs[1]
    for output in outputs:
        assert "bakery-bread-process.md:1" in output
        assert "answer of a full prefill:" in output
        assert "ttft" in output
