"""Write the README's figures from benchmarks/results/*.json.

    python -m benchmarks.report

Each table stands between `<!-- FIGURES:name -->` and `<!-- /FIGURES -->`; a test checks that it is what this prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.common import RESULTS, ROOT
from benchmarks.report_budget import budget_ppl_table, budget_qa_table, budget_table, statistics_table
from benchmarks.report_ingest import ingest_figures
from benchmarks.report_retrieval import retrieval_table

README = ROOT / "README.md"
_BLOCK = re.compile(r"<!-- FIGURES:(\w+) -->\n.*?<!-- /FIGURES -->", re.DOTALL)


def ttft_table(result: dict[str, Any]) -> str:
    """Seconds and ratios per context length."""
    settings, machine = result["settings"], result["machine"]
    methods = ("lego:16 warm", "lego:4 warm", "lego:4 cold", "none warm")
    lines = [
        "| context | full prefill (transformers) | lego:16 | lego:4 (default) | lego:4, cold file cache | none |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["results"]:
        times = row["ttft_seconds"]
        cells = [f"{times[name]['median']:.2f} s, {times[name]['times_sooner_than_hf']:.1f}x" for name in methods]
        lines.append(f"| {row['context_tokens']} | {times['hf']['median']:.2f} s | {' | '.join(cells)} |")
    where = (
        f"SmolLM2-135M, {settings['dtype'].removeprefix('torch.')}, {machine['cores']} cores ({machine['cpu']}), "
        f"median of {settings['rounds']} interleaved rounds, KV read from disk, passages in a new order each round "
        "([ttft_cpu.json](benchmarks/results/ttft_cpu.json))."
    )
    return "\n".join([*lines, "", where])


def quality_table(result: dict[str, Any]) -> str:
    """KL and the share of the gap closed per encoding and selector."""
    table = result["table"]
    lines = [
        "| encoding, selector | rows computed | KL | +- | gap closed | same next token |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        if "kl_standard_error" not in row or name == "full prefill":
            continue
        cells = (f"{row['rows']:.1%}", *(f"{row[key]:.3f}" for key in ("kl", "kl_standard_error")))
        shares = (f"{row['closed']:.0%}", f"{row['agree']:.0%}")
        lines.append(f"| {name} | {' | '.join((*cells, *shares))} |")
    where = (
        f"SmolLM2-135M, {result['settings']['dtype']}, {result['settings']['questions']} questions of XQuAD, "
        "8 paragraphs each; KL to a full prefill over the gold answer's tokens, with its standard error; `gap "
        "closed` is 1 - KL / KL(isolated, none) ([quality_xquad.json](benchmarks/results/quality_xquad.json))."
    )
    return "\n".join([*lines, "", where])


def answers_table(result: dict[str, Any]) -> str:
    """Share of right answers per order and method."""
    table, methods = result["table"], ("full", "lego:16", "lego:4", "none")
    lines = [f"| order of passages | {' | '.join(methods)} |", "|---|---|---|---|---|"]
    for order in ("best last", "best first"):
        rows = (table[f"{order}, {method}"] for method in methods)
        cells = [f"{row['right']:.0%} +- {row['right_standard_error']:.0%}" for row in rows]
        lines.append(f"| {order} | {' | '.join(cells)} |")
    where = (
        f"SmolLM2-135M, {result['settings']['questions']} questions about the example documents, "
        f"k = {result['settings']['k']}, greedy answers of 24 tokens; right when the answer holds the span asked for "
        "([answers.json](benchmarks/results/answers.json))."
    )
    return "\n".join([*lines, "", where])


def store_table(result: dict[str, Any]) -> str:
    """What each tier reads, beside its raw limit."""
    disk, redis, small, flat = (result["results"][name] for name in ("disk", "redis", "small", "flat"))
    lines = ["| read, every byte checked | GB/s | of the raw limit | the limit |", "|---|---|---|---|"]
    for title, rows, name, limit in (
        ("disk, into tensors that are there", disk, "get into tensors", "limit: mapped file to tensors"),
        ("disk, as a mapping", disk, "get, as a mapping", "limit: mapped file to tensors"),
        ("disk with a MAC, into tensors", disk, "get into tensors, with a MAC", "limit: mapped file to tensors"),
        ("Redis, all chunks of a question", redis, "get_many", "limit: pipelined GETs"),
        ("Redis, chunk by chunk into tensors", redis, "get into tensors", "limit: pipelined GETs"),
    ):
        speed = rows[limit]["gb_per_second"]["median"]
        what = limit.removeprefix("limit: ")
        share = rows[name]["share_of_limit"]
        lines.append(f"| {title} | {rows[name]['gb_per_second']['median']:.2f} | {share:.0%} | {what}, {speed:.2f} |")
    settings, machine, get = result["settings"], result["machine"], small["get_seconds"]
    grown = max(0, flat["memory_most_bytes"] - flat["memory_at_start_bytes"])
    where = (
        f"KV of {settings['tokens']} tokens ({settings['kv_bytes'] / 1e6:.0f} MB) in {machine['cores']} cores "
        f"({machine['cpu']}), medians of {settings['rounds']} interleaved rounds, files in the page cache, Redis on "
        f"loopback. A disk store of {small['entries']:,} entries opens in {small['open_seconds']['median'] * 1e3:.1f} "
        f"ms and gives one in {get['p50'] * 1e3:.2f} ms (p99 {get['p99'] * 1e3:.2f} ms). While "
        f"{flat['passed_bytes'] / 1e9:.0f} GB passed through a budget of {flat['budget_bytes'] / 1e9:.0f} GB, the "
        f"process grew by {grown / 1e6:.1f} MB ([store.json](benchmarks/results/store.json))."
    )
    return "\n".join([*lines, "", where])


def codecs_table(result: dict[str, Any]) -> str:
    """What each codec saves and costs."""
    lines = [
        "| codec | smaller by | writes, GB/s | reads, GB/s | error of keys, values |",
        "|---|---|---|---|---|",
    ]
    for name, row in result["results"]["codecs"].items():
        if name.endswith("MAC"):
            continue
        lossy = row["keys_rms_error"] > 0
        error = f"{row['keys_rms_error']:.2%}, {row['values_rms_error']:.2%}" if lossy else "none"
        speeds = f"{row['pack_gb_per_second']:.2f} | {row['unpack_gb_per_second']:.2f}"
        lines.append(f"| `{name}` | {max(1.0, row['ratio']):.2f}x | {speeds} | {error} |")
    where = (
        "KV of SmolLM2-135M in bfloat16, in memory, checksums included; errors are root mean squares, relative "
        "([store.json](benchmarks/results/store.json))."
    )
    return "\n".join([*lines, "", where])


def int8_table(result: dict[str, Any]) -> str:
    """What `int8` does to answers."""
    table, settings = result["table"], result["settings"]
    return (
        f"`int8` changes {1 - table['same_answer']:.0%} of the greedy answers of {settings['tokens']} tokens in some "
        f"letter, and is therefore never a default. It leaves {table['same_token']:.1%} of the next tokens as they "
        f"were, at a KL of {table['kl']:.4f}; right are {table['right_none']:.0%} of the answers without and "
        f"{table['right_int8']:.0%} with it ({settings['questions']} questions about the example documents, "
        f"{settings['selector']}, [codecs_quality.json](benchmarks/results/codecs_quality.json))."
    )


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "ttft": ("ttft_cpu", ttft_table),
    "quality": ("quality_xquad", quality_table),
    "answers": ("answers", answers_table),
    "store": ("store", store_table),
    "codecs": ("store", codecs_table),
    "int8": ("codecs_quality", int8_table),
    "retrieval": ("retrieval", retrieval_table),
    "ingest": ("ingest", ingest_figures),
    "budget": ("budget", budget_table),
    "budget_ppl": ("budget_ppl", budget_ppl_table),
    "budget_qa": ("budget_qa", budget_qa_table),
    "statistics": ("statistics", statistics_table),
}


def filled(text: str) -> str:
    """`text` with every table written anew from its JSON."""

    def table(match: re.Match[str]) -> str:
        file, render = TABLES[match[1]]
        result = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
        return f"<!-- FIGURES:{match[1]} -->\n{render(result)}\n<!-- /FIGURES -->"

    return _BLOCK.sub(table, text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
