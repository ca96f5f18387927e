"""What a lossy codec costs in answers: `int8` against `none`, on questions about the example documents.

    python -m benchmarks.bench_codecs_quality [--questions 60] [--codec int8] [--selector lego:4] [--k 4] [--tokens 24]

Both stores hold KV of the same encodings; the second was copied from the first and coded on the way, as `epic-rag
export` does. For every question both give a greedy answer from the same passages, and the first one's answer is forced
through both, token by token:

* same answer   share of questions with the same greedy answer, letter by letter
* same token    share of answer tokens where both would pick the same next token
* kl            mean KL(none || codec) over the answer's tokens, nats
* right         share of answers that hold one of the expected ones, by codec

A codec that changes more than 5% of the answers must not be a default.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from benchmarks.common import ROOT, provenance, save
from epic_rag.ask import AskOptions, ask
from epic_rag.config import cache_folder
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine, model_spec
from epic_rag.ingest import ingest
from epic_rag.kvstore.transfer import copy_store
from epic_rag.kvstore.uri import open_store
from epic_rag.link import link
from epic_rag.load import load
from epic_rag.model import LanguageModel, load_model
from epic_rag.prompt import Prompt
from epic_rag.retrieve import Retrieved, retrieve
from epic_rag.retrievers.index import PassageIndex
from epic_rag.schema import Answer
from epic_rag.selectors import parse_selector

MOST_CHANGED = 0.05


def read_questions(count: int) -> list[tuple[str, list[str]]]:
    """`count` questions spread evenly over the file, with their answers."""
    text = (ROOT / "examples" / "questions.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    step = len(rows) / count
    return [(row["question"], row["answers"]) for row in (rows[int(i * step)] for i in range(count))]


def greedy(engine: Engine, question: str, passages: list[Retrieved], options: AskOptions) -> str:
    """The engine's answer; its KV must come from the store."""
    *_, answer = ask(engine, question, options, passages)
    if not isinstance(answer, Answer) or any(source.tier == "encoded" for source in answer.sources):
        raise RuntimeError("a passage's KV was not in the store")
    return answer.answer


def log_probabilities(
    engine: Engine, question: str, passages: list[Retrieved], answer: Tensor, selector: str
) -> Tensor:
    """Log probabilities [answer tokens, vocabulary] with the answer forced, from stored KV."""
    frame, ids = engine.frame, engine.model.tokenizer.encode(question)
    chunks = tuple(passage.token_ids for passage in passages)
    prompt = Prompt(frame.prefix_ids, chunks, (*frame.suffix(ids), *answer[:-1].tolist()))
    loaded = load(prompt, engine.prefix_loader, engine.loader)
    linked = link(
        engine.model,
        prompt,
        [chunk.kv for chunk in loaded.chunks],
        parse_selector(selector),
        spare_tokens=0,
        compile_prefix_ids=engine.loader.profile.prefix_ids,
        logits_to_keep=answer.numel(),
    )
    return linked.logits.log_softmax(-1)


def compare(plain: Engine, coded: Engine, question: str, answers: list[str], options: AskOptions) -> dict[str, object]:
    """Both engines on one question."""
    passages = retrieve(plain, question, options.k)
    one, two = (greedy(engine, question, passages, options) for engine in (plain, coded))
    forced = plain.model.ids(tuple(plain.model.tokenizer.encode(one or " ")))
    exact, got = (log_probabilities(e, question, passages, forced, options.selector) for e in (plain, coded))
    return {
        "question": question,
        "answers": [one, two],
        "same_answer": one == two,
        "same_token": float((exact.argmax(-1) == got.argmax(-1)).float().mean()),
        "kl": float((exact.exp() * (exact - got)).sum(-1).mean()),
        "right": [any(wanted.lower() in answer.lower() for wanted in answers) for answer in (one, two)],
    }


def engines(model: LanguageModel, scratch: Path, codec: str) -> tuple[Engine, Engine]:
    """Two engines over the same passages: KV as it is, and KV in the codec."""
    plain = Engine(model, open_store(str(scratch / "none")), PassageIndex(scratch / "index"))
    ingest(plain, [ROOT / "examples" / "documents"])
    coded = open_store(f"{scratch / codec}?codec={codec}")
    report = copy_store(plain.store, coded)
    before, after = plain.store.stats().bytes, coded.stats().bytes
    print(f"{report.copied} chunks and profiles; {before / 1e6:.1f} MB, as {codec} {after / 1e6:.1f} MB")
    return plain, Engine(model, coded, PassageIndex(scratch / "index"))


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--selector", default="lego:4")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--name", default="codecs_quality")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_codecs_quality")
    model = load_model(model_spec(options.model), cache_folder=cache_folder())
    how = AskOptions(k=options.k, selector=options.selector, decode=DecodeOptions(options.tokens))
    items: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        plain, coded = engines(model, Path(folder), options.codec)
        for number, (question, answers) in enumerate(read_questions(options.questions), 1):
            items.append(compare(plain, coded, question, answers, how))
            print(f"\r{number}/{options.questions}", end="", flush=True)
        plain.close()
        coded.close()
    table = {name: mean(float(item[name]) for item in items) for name in ("same_answer", "same_token", "kl")}
    table |= {
        f"right_{name}": mean(item["right"][i] for item in items) for i, name in enumerate(("none", options.codec))
    }
    print("\n" + "\n".join(f"{name:>16} {value:8.4f}" for name, value in table.items()))
    changed = 1 - table["same_answer"]
    verdict = "may be a default" if changed <= MOST_CHANGED else "stays off by default"
    print(f"{options.codec} changes {changed:.1%} of the answers (at most {MOST_CHANGED:.0%} allowed): it {verdict}")
    settings = {"model": model.name, "dtype": str(model.dtype), "threads": torch.get_num_threads(), **vars(options)}
    save(options.name, {**record, "settings": settings, "table": table, "verdict": verdict, "items": items})


if __name__ == "__main__":
    main()
