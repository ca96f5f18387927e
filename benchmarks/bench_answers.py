"""Right answers on the example documents: does the answer hold the span that was asked for?

    python -m benchmarks.bench_answers [--model MODEL] [--questions 148] [--k 4]

The questions of examples/questions.jsonl are answered greedily, in 24 tokens, from the documents of examples/documents:
by a full prefill and by every linked method, with the best passage last (as `ask` does) and first. An answer is right
when it contains the span, case ignored. `agree` is the share of answers equal to the full prefill's, word for word.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from math import sqrt
from pathlib import Path

from benchmarks.common import ROOT, provenance, save
from epic_rag.config import cache_folder
from epic_rag.decode import DecodeOptions, decode
from epic_rag.engine import Engine, model_spec
from epic_rag.ingest import ingest
from epic_rag.kvstore.uri import open_store
from epic_rag.link import link
from epic_rag.load import load
from epic_rag.model import load_model
from epic_rag.prompt import Prompt, build_prompt
from epic_rag.retrieve import retrieve
from epic_rag.retrievers.index import PassageIndex
from epic_rag.selectors import parse_selector

METHODS = ("full", "lego:16", "lego:4", "none")
HOW = DecodeOptions(max_tokens=24)


def answer(engine: Engine, prompt: Prompt, selector: str) -> str:
    """Greedy answer to a prompt."""
    chosen = parse_selector(selector)
    stored = []
    if chosen.needs_stored_kv:
        stored = [chunk.kv for chunk in load(prompt, engine.prefix_loader, engine.loader).chunks]
    linked = link(engine.model, prompt, stored, chosen, spare_tokens=HOW.max_tokens)
    return "".join(piece.text for piece in decode(engine.model, linked.cache, linked.logits[-1], HOW)).strip()


def measure(engine: Engine, rows: list[dict[str, object]], k: int) -> dict[str, dict[str, float]]:
    """Share of right answers, and of answers equal to the full prefill's, per order and method."""
    right: dict[str, int] = {}
    agree: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        question = str(row["question"])
        found = [passage.token_ids for passage in retrieve(engine, question, k)]
        for order in ("best last", "best first"):
            ranked = found if order == "best last" else found[::-1]  # build_prompt turns the ranking round
            room = engine.model.window - HOW.max_tokens
            prompt, _ = build_prompt(engine.frame, engine.model.tokenizer.encode(question), ranked, room)
            texts = {method: answer(engine, prompt, method) for method in METHODS}
            for method, text in texts.items():
                name = f"{order}, {method}"
                spans = [str(span).lower() for span in row["answers"]]  # type: ignore[attr-defined]
                right[name] = right.get(name, 0) + any(span in text.lower() for span in spans)
                agree[name] = agree.get(name, 0) + (text == texts["full"])
        print(f"\r{number}/{len(rows)}", end="", flush=True)
    count = len(rows)
    return {
        name: {
            "right": right[name] / count,
            "right_standard_error": sqrt(right[name] / count * (1 - right[name] / count) / count),
            "agree": agree[name] / count,
        }
        for name in right
    }


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--questions", type=int, default=148)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--name", default="answers")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_answers")
    lines = (ROOT / "examples" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    random.Random(0).shuffle(rows)
    model = load_model(model_spec(options.model), cache_folder=cache_folder())
    with tempfile.TemporaryDirectory() as scratch:
        engine = Engine(model, open_store(scratch), PassageIndex(Path(scratch) / "index"))
        ingest(engine, [ROOT / "examples" / "documents"])
        table = measure(engine, rows[: options.questions], options.k)
        engine.close()
    print(f"\n{'order, method':>24} {'right':>6} {'+-':>6} {'agree':>6}")
    for name, row in table.items():
        print(f"{name:>24} {row['right']:6.3f} {row['right_standard_error']:6.3f} {row['agree']:6.3f}")
    settings = {
        "model": model.name,
        "dtype": str(model.dtype),
        "questions": min(options.questions, len(rows)),
        "k": options.k,
    }
    save(options.name, {**record, "settings": settings, "table": table})


if __name__ == "__main__":
    main()
