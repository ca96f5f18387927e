"""How close linked answers are to a full prefill's: 40 xquad questions, 8 paragraphs each, one of them gold.

    python -m benchmarks.bench_quality [--model MODEL] [--questions 40] [--dtype bfloat16]

For every question the gold answer is forced token by token behind the prompt, and the next-token distributions are
compared with those of a full prefill of the same token ids:

* kl          mean KL(full || method) over the gold answer's tokens
* kl first    the same at its first token
* agree       share of answer tokens where both would pick the same next token
* closed      share of the gap closed: 1 - kl / kl(isolated, none)
* benefit     benefit of the documents kept: (nll without documents - nll) / (nll without documents - nll of full)
* rows        share of the prompt's tokens that were computed

Needs the evaluation data, which is not part of the project; see `data_folder`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor

from benchmarks.common import data_folder, provenance, save
from epic_rag.config import cache_folder
from epic_rag.encode import Encoder
from epic_rag.encoding import make_profile
from epic_rag.engine import model_spec
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.link import link
from epic_rag.model import LanguageModel, load_model
from epic_rag.prompt import Prompt, prompt_frame
from epic_rag.selectors import parse_selector

METHODS = (
    ("none", "none"), ("none", "lego:4"), ("none", "lego:16"), ("sinks", "none"), ("prompt", "none"),
    ("warm:600", "none"), ("warm:600", "lego:4"), ("warm:600", "lego:16"),
)  # fmt: skip
NUM_PARAGRAPHS = 8


@dataclass(frozen=True, slots=True)
class Item:
    """One question: paragraphs in the order of the prompt, the gold one among them."""

    question: str
    answer: str
    paragraphs: tuple[str, ...]


def read_items(folder: Path, count: int, seed: int) -> tuple[list[Item], list[str]]:
    """`count` questions from different paragraphs, and all paragraphs as the corpus."""
    paragraphs = {
        row["id"]: f"{row['title']}\n{row['text'].strip()}\n\n" for row in _rows(folder / "en_paragraphs.jsonl")
    }
    draw = random.Random(seed)
    questions = list(_rows(folder / "en_questions.jsonl"))
    draw.shuffle(questions)
    items, used = [], set()
    for row in questions:
        if row["doc_id"] in used or len(items) == count:
            continue
        used.add(row["doc_id"])
        others = draw.sample(sorted(set(paragraphs) - {row["doc_id"]}), NUM_PARAGRAPHS - 1)
        order = [row["doc_id"], *others]
        draw.shuffle(order)
        items.append(Item(row["question"], row["answers"][0], tuple(paragraphs[name] for name in order)))
    return items, list(paragraphs.values())


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


class Bench:
    """Runs every method over the items."""

    statistics = False

    def __init__(self, model: LanguageModel, corpus: Sequence[str]) -> None:
        self.model = model
        self.frame = prompt_frame(model.tokenizer)
        self.corpus = [tuple(model.tokenizer.encode(text)) for text in corpus]
        self.encoders: dict[str, Encoder] = {}
        self.exact = Encoder(model, ())
        self._encoded: list[ChunkKV] = []
        self._encoded_for: tuple[str, tuple[tuple[int, ...], ...]] = ("", ())

    def encoder(self, encoding: str) -> Encoder:
        """The encoder behind the encoding's compile prefix, which is chosen from the corpus."""
        if encoding not in self.encoders:
            profile = make_profile(self.model, self.frame, encoding, self.corpus)
            self.encoders[encoding] = Encoder(self.model, profile.prefix_ids, statistics=self.statistics)
        return self.encoders[encoding]

    def encoded(self, encoding: str, prompt: Prompt) -> list[ChunkKV]:
        """KV of the prompt's prefix and chunks; kept for the next selector on the same question."""
        if (encoding, prompt.chunk_ids) != self._encoded_for:
            encoder = self.encoder(encoding)
            self._encoded = [self.exact.encode(prompt.prefix_ids), *map(encoder.encode, prompt.chunk_ids)]
            self._encoded_for = (encoding, prompt.chunk_ids)
        return self._encoded

    def prompt(self, item: Item, paragraphs: Sequence[str]) -> tuple[Prompt, Tensor]:
        """The prompt with the gold answer behind it (its last token left out), and the answer's token ids."""
        encode = self.model.tokenizer.encode
        answer = encode(item.answer)
        suffix = (*self.frame.suffix(encode(item.question)), *answer[:-1])
        return Prompt(self.frame.prefix_ids, tuple(tuple(encode(p)) for p in paragraphs), suffix), self.model.ids(
            answer
        )

    def log_probabilities(self, item: Item, method: tuple[str, str], paragraphs: Sequence[str]) -> tuple[Tensor, float]:
        """Log probabilities `[answer tokens, vocabulary]` and the share of rows computed."""
        encoding, selector = method
        prompt, answer = self.prompt(item, paragraphs)
        chosen = parse_selector(selector)
        stored = []
        if chosen.needs_stored_kv:
            stored = self.encoded(encoding, prompt)
        linked = link(self.model, prompt, stored, chosen, spare_tokens=0, logits_to_keep=answer.numel())
        return linked.logits.log_softmax(-1), linked.num_recomputed / prompt.num_tokens

    def measure(self, item: Item) -> dict[str, dict[str, float]]:
        """All methods on one question."""
        _, answer = self.prompt(item, item.paragraphs)
        full, _ = self.log_probabilities(item, ("", "full"), item.paragraphs)
        bare, _ = self.log_probabilities(item, ("", "full"), ())
        results = {"full prefill": {"kl": 0.0, "kl_first": 0.0, "agree": 1.0, "nll": nll(full, answer), "rows": 1.0}}
        results["without documents"] = {"nll": nll(bare, answer)}
        for method in METHODS:
            got, rows = self.log_probabilities(item, method, item.paragraphs)
            kl = (full.exp() * (full - got)).sum(-1)
            agree = (got.argmax(-1) == full.argmax(-1)).float().mean()
            name = f"{'isolated' if method[0] == 'none' else method[0]}, {method[1]}"
            results[name] = {
                "kl": float(kl.mean()),
                "kl_first": float(kl[0]),
                "agree": float(agree),
                "nll": nll(got, answer),
                "rows": rows,
            }
        return results


def nll(log_probabilities: Tensor, answer: Tensor) -> float:
    """Mean negative log-likelihood of the answer's tokens, nats."""
    return float(-log_probabilities.gather(1, answer[:, None]).mean())


def summarise(results: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Means over the questions, standard errors of KL, shares of the gap."""
    table: dict[str, dict[str, float]] = {}
    bare = mean(one["without documents"]["nll"] for one in results)
    full = mean(one["full prefill"]["nll"] for one in results)
    naive = mean(one["isolated, none"]["kl"] for one in results)
    for name in results[0]:
        measures = results[0][name]
        row = {key: mean(one[name][key] for one in results) for key in measures}
        if "kl" in row:
            values = [one[name]["kl"] for one in results]
            row["kl_standard_error"] = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
            row["closed"] = 1 - row["kl"] / naive
            row["benefit"] = (bare - row["nll"]) / (bare - full)
        table[name] = row
    return table


def show(table: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    widths = {
        "kl": 7,
        "kl_standard_error": 6,
        "kl_first": 7,
        "agree": 6,
        "closed": 7,
        "benefit": 8,
        "nll": 6,
        "rows": 6,
    }
    heads = {"kl_standard_error": "+-", "kl_first": "first"}
    print(f"\n{'encoding, selector':>20}", *(f"{heads.get(key, key):>{width}}" for key, width in widths.items()))
    for name, row in table.items():
        cells = (f"{row[key]:.3f}" if key in row else "" for key in widths)
        print(f"{name:>20}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths.values(), strict=True)))


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="quality_xquad")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_quality")
    items, corpus = read_items(data_folder("xquad"), options.questions, options.seed)
    model = load_model(model_spec(options.model), cache_folder=cache_folder(), dtype=options.dtype)
    bench = Bench(model, corpus)
    results = []
    with torch.inference_mode():
        for number, item in enumerate(items, 1):
            results.append(bench.measure(item))
            print(f"\r{number}/{len(items)}", end="", flush=True)
    table = summarise(results)
    show(table)
    settings = {"model": model.name, "dtype": options.dtype, "questions": len(items), "seed": options.seed}
    save(options.name, {**record, "settings": settings, "table": table, "items": results})


if __name__ == "__main__":
    main()
