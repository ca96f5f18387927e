"""What a KV budget saves and costs: memory, decode seconds, and eviction's share of the time to the first token.

    python -m benchmarks.bench_budget [--rounds 40] [--only decode,evict,memory]

* decode  seconds a token at a context of 8,000 tokens under a budget of 1,024, beside a context of 1,024 without one,
          and beside 8,000 tokens kept; one step of each in turn
* evict   a prompt of 4,096 tokens linked from chunks in memory: with and without scores, and its eviction to a quarter;
          the first slot of the answer, with which the memory of what went is given back
* memory  anonymous memory of a process that prefilled 8,000 tokens under a budget, less what it had before, beside the
          arithmetic: slots x bytes of a token's KV, and of its statistics; each in a process of its own, which did the
          same once before: what that left behind is code that oneDNN compiled for each shape, `one_time_bytes`
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from itertools import cycle, islice, pairwise
from statistics import median
from time import perf_counter

import torch

from benchmarks.bench_statistics import CHUNK_TOKENS, SUFFIX_TOKENS
from benchmarks.common import RESULTS, ROOT, provenance, save, spread
from benchmarks.store_scale import anonymous_bytes
from epic_rag.config import cache_folder
from epic_rag.encode import Encoder
from epic_rag.engine import model_spec
from epic_rag.evict import Keeping, KVBudget, parse_policy
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.link import link
from epic_rag.model import LanguageModel, load_model
from epic_rag.prompt import Prompt
from epic_rag.selectors import parse_selector

LONG_TOKENS, BUDGET_TOKENS, STRIDE_TOKENS = 8000, 1024, 64
POLICIES = ("roco", "roco:head", "h2o", "tova", "recency")
SHARES = (None, 0.75, 0.5, 0.25, 0.125)
_ANSWER_TOKENS = 100
_SCORE_BYTES = 20
"""Of a slot and head: four numbers and a position."""


def token_ids(model: LanguageModel, count: int) -> list[int]:
    """Real text, over and over."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "documents").rglob("*.md"))]
    return list(islice(cycle(model.tokenizer.encode("\n\n".join(texts))), count))


def bounded(model: LanguageModel, num_tokens: int, policy: str, budget: int | None) -> BoundedKV:
    """A prompt, prefilled under a budget that holds for the answer too."""
    bounds = Bounds.of_mode("auto", num_tokens, _ANSWER_TOKENS, budget, STRIDE_TOKENS)
    kv = BoundedKV(model, bounds, parse_policy(policy, budget), STRIDE_TOKENS)
    kv.prefill(token_ids(model, num_tokens))
    return kv


def decode(model: LanguageModel, rounds: int) -> dict[str, object]:
    """Seconds of a step."""
    ways = {"1024 tokens, full": bounded(model, BUDGET_TOKENS, "full", None)}
    ways |= {f"8000 tokens, {policy} 1024": bounded(model, LONG_TOKENS, policy, BUDGET_TOKENS) for policy in POLICIES}
    ways["8000 tokens, full"] = bounded(model, LONG_TOKENS, "full", None)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, kv in ways.items():
            began = perf_counter()
            kv.step(100 + turn)
            if turn >= 2:
                seconds[name].append(perf_counter() - began)
    base = median(seconds["1024 tokens, full"])
    rows = {name: {**spread(each), "of_short_context": median(each) / base} for name, each in seconds.items()}
    for name, row in rows.items():
        print(f"{name:>26} {row['median'] * 1e3:7.1f} ms a token, {row['of_short_context']:.2f} of the first")
    return rows


def evict(model: LanguageModel, rounds: int) -> dict[str, object]:
    """Seconds of linking with and without scores, and of the eviction."""
    ids = token_ids(model, 5000)
    chunks = tuple(tuple(ids[i * CHUNK_TOKENS : (i + 1) * CHUNK_TOKENS]) for i in range(4056 // CHUNK_TOKENS))
    prompt = Prompt((), chunks, tuple(ids[-SUFFIX_TOKENS:]))
    encoder = Encoder(model, ids[:600])
    stored = [encoder.encode(chunk) for chunk in chunks]
    rows: dict[str, object] = {}
    for selector in ("lego:4", "lego:16"):
        seconds: dict[str, list[float]] = {}
        for turn in range(rounds // 4 + 1):
            for policy in ("full", *POLICIES):
                budget = None if policy == "full" else KVBudget(ratio=0.25)
                began = perf_counter()
                keeping = Keeping(model, prompt, parse_policy(policy, budget), budget, 32)
                linked = link(model, prompt, stored, parse_selector(selector), spare_tokens=32, scores=keeping.sink)
                stages = [began, perf_counter()]
                keeping.evict(linked.cache)
                stages.append(perf_counter())
                if keeping.keeper is not None:
                    keeping.keeper.next_slot()
                stages.append(perf_counter())
                if turn:
                    for name, (start, stop) in zip(("link", "evict", "first slot"), pairwise(stages), strict=True):
                        seconds.setdefault(f"{policy} {name}", []).append(stop - start)
        whole = median(seconds["full link"])
        for policy in POLICIES:
            linked_seconds, evict_seconds, first_slot = (
                median(seconds[f"{policy} {name}"]) for name in ("link", "evict", "first slot")
            )
            rows[f"{selector}, {policy}"] = {
                "link_without_scores_seconds": whole,
                "link_seconds": linked_seconds,
                "evict_seconds": evict_seconds,
                "evict_share": evict_seconds / (whole + evict_seconds),
                "scores_share": linked_seconds / whole - 1,
                "first_slot_seconds": first_slot,
            }
            print(
                f"{selector}, {policy:>9}: evict {evict_seconds * 1e3:5.1f} ms, {evict_seconds / whole:6.1%} of link;",
                end="",
            )
            print(f" scores {linked_seconds / whole - 1:+.1%}; first slot {first_slot * 1e3:.1f} ms")
    return rows


def memory(model_name: str | None) -> dict[str, object]:
    """One process a budget."""
    rows: dict[str, object] = {}
    for share in SHARES:
        command = [sys.executable, "-m", "benchmarks.bench_budget", "--measure", str(share or 1.0)]
        command += ["--model", model_name] if model_name else []
        small = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # freed memory is given back
        done = subprocess.run(command, cwd=ROOT, env=os.environ | small, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        rows[f"{share or 1.0:.1%}"] = row
        print(
            f"{share or 1.0:6.1%}: {row['grown_bytes'] / 1e6:6.1f} MB, arithmetic {row['expected_bytes'] / 1e6:6.1f} MB"
        )
    return rows


def measure(model: LanguageModel, share: float) -> None:
    """Print what one budget takes in this process."""
    budget = None if share == 1.0 else int(LONG_TOKENS * share)
    policy = "full" if budget is None else "roco"
    nothing = anonymous_bytes()
    kv = bounded(model, LONG_TOKENS, policy, budget)
    del kv
    gc.collect()
    before = anonymous_bytes()
    kv = bounded(model, LONG_TOKENS, policy, budget)
    gc.collect()
    slots = kv.cache.capacity
    score_bytes = 0 if budget is None else _SCORE_BYTES * model.num_layers * model.num_kv_heads * slots
    expected = slots * model.kv_bytes_per_token + score_bytes
    row = {"slots": slots, "grown_bytes": anonymous_bytes() - before, "expected_bytes": expected}
    print(json.dumps(row | {"peak_slots": kv.peak_slots, "one_time_bytes": before - nothing}))


def main() -> None:
    """Measure, print, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="decode,evict,memory")
    parser.add_argument("--measure", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="budget")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_budget")
    model = load_model(model_spec(options.model), cache_folder=cache_folder())
    with torch.inference_mode():
        if options.measure:
            measure(model, options.measure)
            return
        sections = {
            "decode": lambda: decode(model, options.rounds),
            "evict": lambda: evict(model, options.rounds),
            "memory": lambda: memory(options.model),
        }
        settings = {"model": model.name, "dtype": str(model.dtype), "threads": torch.get_num_threads(), **vars(options)}
        path = RESULTS / f"{options.name}.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name in options.only.split(","):
            result[name] = {**record, "settings": settings, "rows": sections[name]()}
            save(options.name, result)  # sections measured at other times stay, each with its own provenance


if __name__ == "__main__":
    main()
