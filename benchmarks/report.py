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


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "ttft": ("ttft_cpu", ttft_table),
    "quality": ("quality_xquad", quality_table),
    "answers": ("answers", answers_table),
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
