"""What eviction costs in answers: linked prompts under a KV budget, every policy, 40 xquad questions of 8 paragraphs.

    python -m benchmarks.bench_budget_qa [--questions 40] [--selector lego:4] [--encoding warm:600]

A prompt is linked, evicted to a share of its tokens, and decoded in a cache of that size, as `ask --budget` does:

* kl      mean KL(full prefill, nothing evicted || this) over the gold answer's tokens, forced one by one
* agree   share of these tokens where both would pick the same one
* f1      words of a greedy answer of 16 tokens in common with a gold answer, the best of those given, as SQuAD counts

Needs the evaluation data, which is not part of the project; see `data_folder`.
"""

from __future__ import annotations

import argparse
import re
import string
from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

import torch
from torch import Tensor

from benchmarks.bench_quality import Bench, Item, read_items
from benchmarks.common import data_folder, provenance, save
from epic_rag.config import cache_folder
from epic_rag.decode import DecodeOptions, decode
from epic_rag.engine import model_spec
from epic_rag.evict import Keeping, KVBudget, parse_policy
from epic_rag.link import Linked, link
from epic_rag.model import load_model
from epic_rag.prompt import Prompt
from epic_rag.selectors import parse_selector

POLICIES = ("roco", "roco:head", "roco:seeded", "h2o", "tova", "recency", "random")
SHARES = (0.75, 0.5, 0.25, 0.125)
HOW = DecodeOptions(max_tokens=16)


class BudgetBench(Bench):
    """Runs every policy and budget over the items."""

    statistics = True  # for roco:seeded; the others do not look at them
    selector = parse_selector("lego:4")
    encoding = "warm:600"

    def linked(self, prompt: Prompt, policy: str, share: float | None) -> tuple[Linked, Keeping]:
        """The prompt, linked and evicted."""
        budget = None if share is None else KVBudget(ratio=share)
        keeping = Keeping(self.model, prompt, parse_policy(policy, budget), budget, 32)
        stored = self.encoded(self.encoding, prompt)
        linked = link(self.model, prompt, stored, self.selector, spare_tokens=32, scores=keeping.sink)
        keeping.evict(linked.cache)
        return linked, keeping

    def forced(self, prompt: Prompt, answer: Tensor, policy: str, share: float | None) -> Tensor:
        """Log probabilities `[answer tokens, vocabulary]` with the answer forced token by token."""
        linked, keeping = self.linked(prompt, policy, share)
        cache, rows = linked.cache, [linked.logits[-1]]
        for token in answer[:-1].tolist():
            position, slot = cache.next_position, cache.length
            slot = slot if keeping.keeper is None else keeping.keeper.next_slot()
            where = self.model.positions(position, position + 1), self.model.positions(slot, slot + 1)
            sink = None if keeping.keeper is None else keeping.keeper.sink
            rows.append(self.model.forward(self.model.ids([token]), where[0], cache, slots=where[1], scores=sink)[-1])
        return torch.stack(rows).log_softmax(-1)

    def greedy(self, prompt: Prompt, policy: str, share: float | None) -> str:
        """A greedy answer."""
        linked, keeping = self.linked(prompt, policy, share)
        pieces = decode(self.model, linked.cache, linked.logits[-1], HOW, keeping.keeper)
        return "".join(piece.text for piece in pieces).strip()

    def compare(self, item: Item) -> dict[str, dict[str, float]]:
        """All policies and budgets on one question."""
        exact, _ = self.log_probabilities(item, ("", "full"), item.paragraphs)
        whole, answer = self.prompt(item, item.paragraphs)
        suffix = self.frame.suffix(self.model.tokenizer.encode(item.question))
        prompt = Prompt(whole.prefix_ids, whole.chunk_ids, suffix)
        results = {}
        for policy, share in [("full", None), *((policy, share) for share in SHARES for policy in POLICIES)]:
            got = self.forced(prompt, answer, policy, share)
            results[name_of(policy, share)] = {
                "kl": float((exact.exp() * (exact - got)).sum(-1).mean()),
                "agree": float((got.argmax(-1) == exact.argmax(-1)).float().mean()),
                "f1": f1(self.greedy(prompt, policy, share), item.answer),
            }
        return results


def name_of(policy: str, share: float | None) -> str:
    """How a row is named."""
    return policy if share is None else f"{policy} {share:.1%}"


def f1(answer: str, gold: str) -> float:
    """Words in common, case, punctuation and articles ignored (SQuAD, arXiv 1606.05250)."""
    got, wanted = _words(answer), _words(gold)
    common = sum((Counter(got) & Counter(wanted)).values())
    return 2 * common / (len(got) + len(wanted)) if common else 0.0


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def summarise(results: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Means and standard errors over the questions."""
    table: dict[str, dict[str, float]] = {}
    for name in results[0]:
        row = table[name] = {}
        for measure in results[0][name]:
            values = [one[name][measure] for one in results]
            row[measure] = mean(values)
            row[f"{measure}_standard_error"] = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return table


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--selector", default="lego:4")
    parser.add_argument("--encoding", default="warm:600")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="budget_qa")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_budget_qa")
    items, corpus = read_items(data_folder("xquad"), options.questions, options.seed)
    model = load_model(model_spec(options.model), cache_folder=cache_folder(), dtype=options.dtype)
    bench = BudgetBench(model, corpus)
    bench.selector, bench.encoding = parse_selector(options.selector), options.encoding
    results = []
    with torch.inference_mode():
        for number, item in enumerate(items, 1):
            results.append(bench.compare(item))
            print(f"\r{number}/{len(items)}", end="", flush=True)
    table = summarise(results)
    print(f"\n{'':>18} {'kl':>7} {'+-':>6} {'agree':>6} {'f1':>6} {'+-':>6}")
    for name, row in table.items():
        cells = (row["kl"], row["kl_standard_error"], row["agree"], row["f1"], row["f1_standard_error"])
        print(f"{name:>18}", " ".join(f"{cell:{width}.3f}" for cell, width in zip(cells, (7, 6, 6, 6, 6), strict=True)))
    settings = {"model": model.name, "dtype": options.dtype, "questions": len(items), "seed": options.seed}
    settings |= {"selector": options.selector, "encoding": options.encoding}
    save(options.name, {**record, "settings": settings, "table": table})


if __name__ == "__main__":
    main()
