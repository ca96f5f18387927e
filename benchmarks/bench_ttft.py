"""Seconds to the first token: linked from a store on disk, against a full prefill of the same token ids.

    python -m benchmarks.bench_ttft [--model MODEL] [--contexts 1024,2048,4096,7168] [--rounds 7]

All methods answer the same prompt in one interleaved run in one process; the documents stand in another order every
round, so that nothing can be reused as a prefix. Times include reading the KV from disk, checksums, rotation, the
forward and picking the token. `cold` drops the blobs from the file cache first.

* hf       transformers' own forward over the whole prompt (bfloat16 on CPU, fused attention): the baseline
* full     our engine computing every row
* lego:16, lego:4 (default), none: linked
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.common import ROOT, provenance, save, spread
from epic_rag.ask import AskOptions, ask
from epic_rag.config import cache_folder
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine, model_spec
from epic_rag.kvstore.uri import open_store
from epic_rag.model import load_model
from epic_rag.prompt import build_prompt
from epic_rag.retrieve import Retrieved
from epic_rag.retrievers.index import PassageIndex
from epic_rag.schema import Answer

CHUNK_TOKENS = 256
QUESTION = "What is the focal length of the Merrin 140 telescope, and how long should it cool before use?"
LINKED = ("lego:16", "lego:4", "none")


def make_passages(engine: Engine, num_tokens: int) -> list[Retrieved]:
    """Chunks of 256 tokens cut from the example documents, as many as fill `num_tokens`."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "documents").rglob("*.md"))]
    ids = engine.model.tokenizer.encode("\n\n".join(texts))
    bare = build_prompt(engine.frame, engine.model.tokenizer.encode(QUESTION), [], engine.model.window)[0].num_tokens
    count = max(1, (num_tokens - bare) // CHUNK_TOKENS)
    chunks = [tuple(ids[i * CHUNK_TOKENS : (i + 1) * CHUNK_TOKENS]) for i in range(count)]
    return [Retrieved("", chunk, f"chunk {i}", i, 0.0) for i, chunk in enumerate(chunks)]


def drop_file_cache(folder: Path) -> None:
    """Forget the blobs' pages, so that the next read goes to the disk."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def linked_run(engine: Engine, passages: list[Retrieved], selector: str) -> Answer:
    """Ask with the answer cut to one token."""
    options = AskOptions(k=len(passages), selector=selector, decode=DecodeOptions(max_tokens=1))
    *_, answer = ask(engine, QUESTION, options, passages)
    if not isinstance(answer, Answer):
        raise TypeError("ask must end with an Answer")
    return answer


def hf_run(engine: Engine, passages: list[Retrieved]) -> float:
    """Seconds of transformers' own prefill of the same token ids, to the first token."""
    question_ids = engine.model.tokenizer.encode(QUESTION)
    prompt, _ = build_prompt(engine.frame, question_ids, [p.token_ids for p in passages], engine.model.window)
    began = perf_counter()
    with torch.inference_mode():
        output = engine.model.hf_model(engine.model.ids(prompt.token_ids)[None], use_cache=True, logits_to_keep=1)
    int(output.logits[0, -1].argmax())
    return perf_counter() - began


def measure(engine: Engine, folder: Path, num_tokens: int, rounds: int) -> dict[str, object]:
    """One context length, all methods interleaved."""
    passages = make_passages(engine, num_tokens)
    shuffle = random.Random(num_tokens)
    linked_run(engine, passages, "none")  # encodes what is missing
    seconds: dict[str, list[float]] = {"hf": [], "full": []}
    stages: dict[str, list[dict[str, float]]] = {}
    counts: dict[str, object] = {}
    for _ in range(rounds):
        shuffle.shuffle(passages)
        seconds["hf"].append(hf_run(engine, passages))
        seconds["full"].append(linked_run(engine, passages, "full").timings.ttft_seconds)
        for selector in LINKED:
            for cache in ("warm", "cold"):
                if cache == "cold":
                    drop_file_cache(folder)
                answer = linked_run(engine, passages, selector)
                if any(source.tier != "disk" for source in answer.sources):
                    raise RuntimeError("a chunk did not come from disk")
                name = f"{selector} {cache}"
                seconds.setdefault(name, []).append(answer.timings.ttft_seconds)
                parts = {stage: getattr(answer.timings, f"{stage}_seconds") for stage in ("load", "link", "decode")}
                stages.setdefault(name, []).append(parts)
                counts[selector] = {"context": answer.tokens.context, "recomputed": answer.tokens.recomputed}
    baseline = spread(seconds["hf"])["median"]
    rows = {
        name: {**spread(times), "times_sooner_than_hf": baseline / spread(times)["median"]}
        for name, times in seconds.items()
    }
    for name, parts in stages.items():
        rows[name] |= {f"{stage}_seconds": spread([part[stage] for part in parts])["median"] for stage in parts[0]}
    return {"context_tokens": num_tokens, "passages": len(passages), "tokens": counts, "ttft_seconds": rows}


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--contexts", default="1024,2048,4096,7168")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default="ttft_cpu")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_ttft")
    with tempfile.TemporaryDirectory() as scratch:
        model = load_model(model_spec(options.model), cache_folder=cache_folder())
        engine = Engine(model, open_store(scratch), PassageIndex(None))
        results = []
        print(f"{'context':>8} {'method':>14} {'seconds':>9} {'x sooner':>9} {'load':>7} {'link':>7} {'rows':>6}")
        for num_tokens in map(int, options.contexts.split(",")):
            result = measure(engine, Path(scratch), num_tokens, options.rounds)
            results.append(result)
            for name, row in result["ttft_seconds"].items():
                rows = result["tokens"].get(name.split()[0], {}).get("recomputed", "all")
                load, link = (f"{row.get(stage, float('nan')):7.3f}" for stage in ("load_seconds", "link_seconds"))
                print(
                    f"{num_tokens:>8} {name:>14} {row['median']:9.3f} {row['times_sooner_than_hf']:9.1f} "
                    f"{load} {link} {rows:>6}"
                )
        engine.close()
    settings = {
        "model": model.name,
        "dtype": str(model.dtype),
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
    }
    save(options.name, {**record, "settings": settings, "results": results})


if __name__ == "__main__":
    main()
