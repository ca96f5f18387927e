"""The README's words on the ingest of two documentation trees."""

from __future__ import annotations

from statistics import median
from typing import Any


def ingest_figures(result: dict[str, Any]) -> str:
    """Files, tokens, speed, memory and the ingest of the unchanged trees."""
    files, first, again = result["files"], result["first"], result["unchanged"]
    seconds, speed = [run["process_seconds"] for run in again], first["tokens_per_second"]
    inside = median(run["seconds"] for run in again)
    run = first["encoded_tokens"] / first["tokens"]
    went_on = "" if run > 0.999 else f" (measured over the {run:.0%} of a run that had been stopped and went on)"
    left_out = f"{len(first['errors'])} left out with a reason" if first["errors"] else "none left out"
    return (
        f"The documentation trees of two projects, {files['in_the_trees']} files: {files['to_read']} read, "
        f"{len(files['passed_over'])} of other kinds passed over, {left_out}; {first['chunks']:,} chunks, "
        f"{first['tokens']:,} tokens. Encoded with `{result['store_options'] or 'codec=none'}` at "
        f"{speed:,.0f} tokens a second{went_on}, peak memory {_gib([first])} GiB. "
        f"Unchanged, the same command encodes {max(run['encoded'] for run in again)} chunks and takes "
        f"{median(seconds):.1f} s from start to exit ({seconds[0]:.1f} s the first time, right after; {inside:.1f} s "
        f"of it are the ingest, the rest imports and the model), peak memory {_gib(again)} GiB "
        "([ingest.json](benchmarks/results/ingest.json), which names every file that was not read)."
    )


def _gib(runs: list[dict[str, Any]]) -> str:
    return f"{max(run['peak_bytes'] for run in runs) / 2**30:.1f}"
