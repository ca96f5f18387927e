"""Ingest of two documentation trees from the first file to the last, and again unchanged.

    python -m benchmarks.bench_ingest [--store disk:///FOLDER?codec=int8] [--limit-files N] [--jobs N] [--again]

Ingests `docs` of the evaluation data with the program `epic-rag` in a process of its own, then once
more unchanged, and writes both summaries, the peak memory of each process, the bytes on disk and every file that was
left out or passed over, with the reason. It may be stopped at any time: the same command goes on, and only a run that
encoded everything in one go tells the whole of tokens per second (`encoded` equals `chunks` then). KV of the demo
model takes 23 KB a token as it is; a codec in the store's address makes that less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from time import perf_counter

from benchmarks.common import data_folder, provenance, save
from epic_rag.config import share_cores
from epic_rag.loading import SkippedSource
from epic_rag.loading.registry import reader_for
from epic_rag.loading.walk import Walk


def main() -> None:
    arguments = parse()
    folder = data_folder("docs")
    files = list(islice((found for found in Walk().files([folder]) if isinstance(found, Path)), arguments.limit_files))
    with tempfile.TemporaryDirectory() as scratch:
        store = arguments.store or f"disk://{scratch}/store"
        result = provenance("benchmarks.bench_ingest")
        result |= {"store_options": store.partition("?")[2], "files": survey(folder, files)}
        paths = [str(folder)] if arguments.limit_files is None else list(map(str, files))
        if not arguments.again:
            result["first"] = run(["ingest", *paths, "--store", store, "--jobs", str(arguments.jobs)])
        result["unchanged"] = [run(["ingest", *paths, "--store", store]) for _ in range(3)]
    save("ingest" if arguments.limit_files is None else f"ingest_{arguments.limit_files}", result)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="address of a store that stays; default: one that goes when this ends")
    parser.add_argument("--limit-files", type=int, help="only the first so many files")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only the ingest of the unchanged trees")
    return parser.parse_args()


def survey(folder: Path, files: list[Path]) -> dict[str, object]:
    """What lies in the trees: files by suffix, and those that no reader is for, by name."""
    everything = sorted(path for path in folder.rglob("*") if path.is_file())
    passed_over = [path for path in everything if reader_for(path) is None]
    return {
        "in_the_trees": len(everything),
        "to_read": len(files),
        "suffixes": dict(Counter(path.suffix for path in everything)),
        "bytes_to_read": sum(path.stat().st_size for path in files),
        "passed_over": [
            {"source": str(path.relative_to(folder)), "reason": f"unknown suffix {path.suffix or '(none)'}"}
            for path in passed_over
        ],
        "unreadable": [item.source for item in Walk().files([folder]) if isinstance(item, SkippedSource)],
    }


def run(arguments: list[str]) -> dict[str, object]:
    """One run of the program: its JSON summary, its seconds from start to exit, its peak memory."""
    began = perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "epic_rag", *arguments, "--json"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), 1)],
        )
        _, status, usage = os.wait4(process, 0)
        seconds = perf_counter() - began
        output.seek(0)
        text = output.read()
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        raise SystemExit(f"epic-rag {arguments[0]} ended with {code}; run the same command again to go on")
    report = json.loads(text)
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{report['chunks']} chunks, {report['encoded']} encoded, {seconds:.1f} s, {peak_bytes / 2**30:.2f} GiB")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {
        "process_seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "exit_code": code,
        "peak_bytes": peak_bytes,
        **report,
    }


if __name__ == "__main__":
    share_cores()
    main()
