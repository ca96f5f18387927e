"""Ways to encode the chunks of an ingest, all interleaved in one process.

    python -m benchmarks.bench_ingest_encode [--model MODEL] [--rounds 5] [--name NAME]

Chunks of 256 tokens behind a compile prefix of 600, written to a store on disk:

* `one_by_one`: prefill, write, prefill, write, …
* `write_beside`: two threads; the encoder takes one chunk at a time, so that the write of one chunk goes on while the
  next is prefilled.

Batching is bounded from above by `rows`: the seconds of one forward of 256, 512 and 1,024 rows behind the same prefix.
A batch of chunks would do the same matrix products and a little less attention; if a row of 1,024 costs what a row of
256 costs, chunks fill the matrices already and batching gives nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.common import ROOT, provenance, save, spread
from epic_rag.config import cache_folder, share_cores
from epic_rag.encode import Encoder
from epic_rag.engine import model_spec
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.uri import open_store
from epic_rag.load import Loader
from epic_rag.model import LanguageModel, load_model

CHUNK_TOKENS = 256
PREFIX_TOKENS = 600
CHUNKS_A_ROUND = 4
ROWS = (256, 512, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="ingest_encode")
    arguments = parser.parse_args()
    model = load_model(model_spec(arguments.model), cache_folder=cache_folder())
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    ids = model.tokenizer.encode(text)
    with tempfile.TemporaryDirectory() as scratch:
        writing = compare_writing(model, ids, Path(scratch), arguments.rounds)
    result = provenance("benchmarks.bench_ingest_encode") | {
        "model": model.name,
        "dtype": str(model.dtype),
        "threads": torch.get_num_threads(),
        "chunk_tokens": CHUNK_TOKENS,
        "prefix_tokens": PREFIX_TOKENS,
        "writing": writing,
        "rows": rows(model, ids, arguments.rounds),
    }
    save(arguments.name, result)


def compare_writing(model: LanguageModel, ids: list[int], folder: Path, rounds: int) -> dict[str, object]:
    """Seconds per round of the two ways; the first round is not counted, and no chunk is encoded twice."""
    tokenizer, prefix = model.tokenizer.digest, tuple(ids[:PREFIX_TOKENS])
    profile = EncodingProfile("0" * 64, model.name, "any", "{}", tokenizer, "benchmark", prefix)
    store = open_store(str(folder / "store"), None)
    loader, fresh = Loader(store, profile, Encoder(model, prefix)), count(PREFIX_TOKENS, 7)
    seconds: dict[str, list[float]] = {"one_by_one": [], "write_beside": []}
    with ThreadPoolExecutor(2) as threads:
        for turn in range(rounds + 1):
            for name in sorted(seconds, reverse=bool(turn % 2)):
                chunks = [
                    ids[start : start + CHUNK_TOKENS] for start, _ in zip(fresh, range(CHUNKS_A_ROUND), strict=False)
                ]
                began = perf_counter()
                list(map(loader.encode, chunks) if name == "one_by_one" else threads.map(loader.encode, chunks))
                seconds[name].append(perf_counter() - began)
    store.close()
    tokens = CHUNKS_A_ROUND * CHUNK_TOKENS
    one, beside = (each[1:] for each in seconds.values())
    return {
        "chunks_a_round": CHUNKS_A_ROUND,
        "seconds": {name: spread(each[1:]) for name, each in seconds.items()},
        "tokens_per_second": {name: tokens / median(each[1:]) for name, each in seconds.items()},
        "write_beside_gain": median(a / b - 1 for a, b in zip(one, beside, strict=True)),
    }


def rows(model: LanguageModel, ids: list[int], rounds: int) -> dict[str, object]:
    """Rows per second of one forward behind the prefix, and what the longest gains over one chunk's."""
    cache = model.new_cache(PREFIX_TOKENS + max(ROWS))
    model.forward(model.ids(tuple(ids[:PREFIX_TOKENS])), model.positions(0, PREFIX_TOKENS), cache)
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in ROWS}
    for _ in range(rounds + 1):
        for num_rows, each in seconds.items():
            wanted = tuple(ids[PREFIX_TOKENS : PREFIX_TOKENS + num_rows])
            began = perf_counter()
            model.forward(model.ids(wanted), model.positions(PREFIX_TOKENS, PREFIX_TOKENS + num_rows), cache)
            each.append(perf_counter() - began)
    rates = {num_rows: num_rows / median(each[1:]) for num_rows, each in seconds.items()}
    return {
        "seconds": {str(num_rows): spread(each[1:]) for num_rows, each in seconds.items()},
        "rows_per_second": {str(num_rows): rate for num_rows, rate in rates.items()},
        "gain_of_most_rows": rates[max(ROWS)] / rates[min(ROWS)] - 1,
    }


if __name__ == "__main__":
    share_cores()
    main()
