"""Perplexity of long real texts while KV is kept within a budget, every policy.

    python -m benchmarks.bench_budget_ppl [--texts 5] [--tokens 6144] [--stride 64]

The texts are the largest files of Python's documentation. Each is teacher-forced in strides; after each, the cache is
evicted to a share of the text's tokens. `roco` is compared with the others at the same budget, text by text.

* perplexity  exp of the mean loss, over all texts; its standard error is that of the mean loss over the texts, times it
* over full   mean over the texts of the loss minus the loss of the same text with everything kept, nats

Needs the evaluation data, which is not part of the project; see `data_folder`. Goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import exp, sqrt
from pathlib import Path
from statistics import mean, stdev

from benchmarks.common import RESULTS, data_folder, provenance, save
from epic_rag.config import cache_folder
from epic_rag.engine import model_spec
from epic_rag.evict import KVBudget
from epic_rag.model import LanguageModel, load_model
from epic_rag.perplexity import perplexity

POLICIES = ("roco", "roco:head", "h2o", "tova", "recency", "random")
SHARES = (0.75, 0.5, 0.25, 0.125)


def read_texts(folder: Path, model: LanguageModel, count: int, num_tokens: int) -> dict[str, list[int]]:
    """The first `num_tokens` tokens of the `count` largest files, by name."""
    files = sorted(folder.rglob("*.rst"), key=lambda path: (-path.stat().st_size, path.name))
    texts = {}
    for path in files[:count]:
        ids = model.tokenizer.encode(path.read_text(encoding="utf-8"))[:num_tokens]
        if len(ids) == num_tokens:
            texts[str(path.relative_to(folder))] = ids
    return texts


def combinations() -> Iterator[tuple[str, float | None]]:
    """Policies and budgets, everything kept first."""
    yield "full", None
    yield from ((policy, share) for share in SHARES for policy in POLICIES)


def name_of(policy: str, share: float | None) -> str:
    """How a row is named."""
    return policy if share is None else f"{policy} {share:.1%}"


def summarise(losses: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Rows by policy and budget; `losses`: by text, then by row."""
    table = {}
    for policy, share in combinations():
        name = name_of(policy, share)
        values = [of_text[name] for of_text in losses.values()]
        over = [of_text[name] - of_text["full"] for of_text in losses.values()]
        root = sqrt(len(values))
        table[name] = {
            "perplexity": exp(mean(values)),
            "perplexity_standard_error": exp(mean(values)) * stdev(values) / root,
            "over_full": mean(over),
            "over_full_standard_error": stdev(over) / root,
        }
    return table


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--texts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=6144)
    parser.add_argument("--stride", type=int, default=64)
    parser.add_argument("--name", default="budget_ppl")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_budget_ppl")
    model = load_model(model_spec(options.model), cache_folder=cache_folder(), dtype=options.dtype)
    texts = read_texts(data_folder("docs") / "python", model, options.texts, options.tokens)
    settings = {"model": model.name, "dtype": options.dtype, "tokens": options.tokens, "stride": options.stride}
    partial = RESULTS / f"{options.name}.partial.json"
    losses: dict[str, dict[str, float]] = {}
    if partial.exists():
        kept = json.loads(partial.read_text(encoding="utf-8"))
        losses = kept["losses"] if kept["settings"] == settings else {}
    for text, ids in texts.items():
        for policy, share in combinations():
            done = losses.setdefault(text, {})
            if name_of(policy, share) not in done:
                budget = None if share is None else KVBudget(ratio=share)
                got = perplexity(model, ids, policy, budget, options.stride)
                done[name_of(policy, share)] = got.nll
                print(f"{text:>32} {name_of(policy, share):>17} {got.perplexity:8.3f} {got.seconds:6.1f} s", flush=True)
                partial.write_text(json.dumps({"settings": settings, "losses": losses}), encoding="utf-8")
    table = summarise(losses)
    print(f"\n{'':>18} {'perplexity':>10} {'+-':>6} {'over full':>9} {'+-':>6}")
    for name, row in table.items():
        cells = zip(row.values(), (10, 6, 9, 6), strict=True)
        print(f"{name:>18}", " ".join(f"{cell:{width}.3f}" for cell, width in cells))
    save(options.name, {**record, "settings": {**settings, "texts": list(texts)}, "table": table, "losses": losses})
    partial.unlink()


if __name__ == "__main__":
    main()
