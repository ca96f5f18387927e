"""What attention statistics cost: at ingest in seconds and bytes, and while linking in seconds.

    python -m benchmarks.bench_statistics [--model MODEL] [--context 4096] [--selector lego:16] [--rounds 9]

Everything with and without alternates in one process. At ingest, chunks of 256 tokens are encoded behind a compile
prefix of 600 tokens (and behind none, where a fused attention makes a second pass necessary); the seconds are those of
one chunk, the bytes those of its blob under the codec `none`. While linking, a prompt of 256-token chunks is linked by
a selector, with a sink that adds up what it is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import cycle, islice
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.common import ROOT, provenance, save, spread
from epic_rag.config import cache_folder
from epic_rag.encode import Encoder
from epic_rag.engine import model_spec
from epic_rag.kvstore.format import pack
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.link import link
from epic_rag.model import LanguageModel, load_model
from epic_rag.prompt import Prompt
from epic_rag.selectors import parse_selector

CHUNK_TOKENS = 256
PREFIX_TOKENS = 600
SUFFIX_TOKENS = 40


class AddingSink:
    """Adds up sums, squares and counts of every slot, as an eviction policy needs them."""

    start = 0

    def __init__(self, model: LanguageModel, num_tokens: int) -> None:
        self._held = torch.zeros(2, model.num_layers, model.num_kv_heads, num_tokens, device=model.device)
        self._counts = torch.zeros(model.num_layers, num_tokens, device=model.device)

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Add one layer's."""
        where = slice(start, start + counts.numel())
        self._held[0, layer, :, where] += sums
        self._held[1, layer, :, where] += squares
        self._counts[layer, where] += counts

    def seed(self, start: int, stats: Tensor) -> None:
        """Add what a chunk measured."""
        where, wide = slice(start, start + stats.shape[-1]), stats.float()
        counts = torch.arange(stats.shape[-1], 0, -1, device=stats.device)
        self._held[0, ..., where] += wide[:, :, 0] * counts
        self._held[1, ..., where] += (wide[:, :, 0].square() + wide[:, :, 1].square()) * counts
        self._counts[:, where] += counts


def interleaved(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each way, one after the other in every round; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = perf_counter()
            way()
            seconds[name].append(perf_counter() - began)
    return {name: spread(each[1:]) for name, each in seconds.items()}


def share(measured: dict[str, dict[str, float]]) -> float:
    """What `with` takes more than `without`, by the medians."""
    return round(measured["with"]["median"] / measured["without"]["median"] - 1, 4)


def ingest(model: LanguageModel, ids: list[int], prefix_tokens: int, rounds: int) -> dict[str, object]:
    prefix, chunk = ids[:prefix_tokens], ids[prefix_tokens : prefix_tokens + CHUNK_TOKENS]
    encoders = {
        "with": Encoder(model, prefix, statistics=True),
        "without": Encoder(model, prefix, statistics=False),
    }
    ways = {name: lambda one=encoder: one.encode(chunk) for name, encoder in encoders.items()}
    seconds = interleaved(ways, rounds)
    blob_bytes = {name: blob_size(encoder.encode(chunk)) for name, encoder in encoders.items()}
    return {
        "prefix_tokens": prefix_tokens,
        "seconds": seconds,
        "more_seconds": share(seconds),
        "blob_bytes": blob_bytes,
        "more_bytes": round(blob_bytes["with"] / blob_bytes["without"] - 1, 4),
    }


def blob_size(kv: ChunkKV) -> int:
    return sum(memoryview(part).nbytes for part in pack(ChunkKey("0" * 64), kv, "0" * 64, 1.0))


def linking(model: LanguageModel, ids: list[int], context: int, selector: str, rounds: int) -> dict[str, object]:
    count = (context - SUFFIX_TOKENS) // CHUNK_TOKENS
    chunks = tuple(tuple(ids[i * CHUNK_TOKENS : (i + 1) * CHUNK_TOKENS]) for i in range(count))
    prompt = Prompt((), chunks, tuple(ids[-SUFFIX_TOKENS:]))
    encoder = Encoder(model, ids[:PREFIX_TOKENS])
    stored = [encoder.encode(chunk) for chunk in chunks]
    chosen = parse_selector(selector)

    def one(scored: bool) -> None:
        sink = AddingSink(model, prompt.num_tokens) if scored else None
        link(model, prompt, stored, chosen, spare_tokens=1, scores=sink)

    seconds = interleaved({"with": lambda: one(True), "without": lambda: one(False)}, rounds)
    return {"context": prompt.num_tokens, "selector": selector, "seconds": seconds, "more_seconds": share(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--selector", default="lego:16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dry-run", action="store_true", help="print, write no file")
    options = parser.parse_args()
    model = load_model(model_spec(options.model), cache_folder=cache_folder())
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "documents").rglob("*.md"))]
    ids = list(islice(cycle(model.tokenizer.encode("\n\n".join(texts))), options.context + PREFIX_TOKENS))
    result: dict[str, object] = {
        "provenance": provenance("benchmarks.bench_statistics"),
        "model": model.name,
        "chunk_tokens": CHUNK_TOKENS,
        "ingest": [ingest(model, ids, prefix, options.rounds) for prefix in (PREFIX_TOKENS, 0)],
        "link": linking(model, ids, options.context, options.selector, options.rounds),
    }
    if options.dry_run:
        print(result)
    else:
        save("statistics", result)


if __name__ == "__main__":
    main()
