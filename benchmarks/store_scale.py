"""The parts of `bench_store` that are about many entries and many bytes, not about speed."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from unittest.mock import patch

import torch

from benchmarks.common import spread
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.folder import Folder
from epic_rag.kvstore.format import pack
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV


def small_chunk(profile: EncodingProfile, number: int) -> tuple[ChunkKey, ChunkKV]:
    """A chunk of one token and one layer: less than a kilobyte."""
    ids = torch.tensor([number], dtype=torch.int32)
    planes = torch.full((1, 1, 1, 8), float(number % 100))
    return chunk_key(profile, ids), ChunkKV(planes, planes, ids)


def bench_small(profile: EncodingProfile, scratch: Path, count: int) -> dict[str, object]:
    """Very many small entries, laid down as files without waiting for the disk, and listed at the first open."""
    root = scratch / "small"
    DiskStore(root).close()
    folder = Folder(root)
    with patch("os.fsync"):
        for number in range(count):
            key, kv = small_chunk(profile, number)
            folder.publish(folder.write_temp(key, [memoryview(p) for p in pack(key, kv, profile.digest, 0.01)]), key)
    for name in ("", "-wal", "-shm"):
        folder.manifest.with_name(folder.manifest.name + name).unlink(missing_ok=True)
    began = perf_counter()
    DiskStore(root).close()
    rebuild_seconds = perf_counter() - began
    opening, getting = [], []
    dice = random.Random(0)
    for _ in range(5):
        began = perf_counter()
        store = KVStore(DiskStore(root))
        opening.append(perf_counter() - began)
        for number in dice.sample(range(count), min(count, 4000)):
            key = small_chunk(profile, number)[0]
            began = perf_counter()
            hit = store.get(key, [number])
            getting.append(perf_counter() - began)
            if hit is None:
                raise RuntimeError("an entry was not there")
        store.close()
    percentiles = quantiles(getting, n=100)
    row: dict[str, object] = {
        "entries": count,
        "open_seconds": spread(opening),
        "rebuild_manifest_seconds": rebuild_seconds,
        "get_seconds": {"p50": percentiles[49], "p99": percentiles[98], "max": max(getting)},
    }
    print(f"{count} entries: opened in {median(opening):.4f} s, manifest rebuilt in {rebuild_seconds:.1f} s")
    print(f"get: p50 {percentiles[49] * 1e3:.3f} ms, p99 {percentiles[98] * 1e3:.3f} ms")
    return row


def bench_flat(profile: EncodingProfile, kv: ChunkKV, scratch: Path, through_bytes: int) -> dict[str, object]:
    """Put and get chunk after chunk; a tenth of the bytes fits the budget."""
    budget, passed, most_bytes = through_bytes // 10, 0, 0
    anonymous: list[int] = []
    with KVStore(DiskStore(scratch / "flat", budget)) as store:
        number = 0
        while passed < through_bytes:
            ids = torch.arange(number, number + kv.num_tokens, dtype=torch.int32)
            key = chunk_key(profile, ids)
            passed += store.put(key, ChunkKV(kv.keys, kv.values, ids), profile=profile, encode_seconds=1.0)
            if store.get(key, ids) is None:
                raise RuntimeError("a chunk was not there")
            number += 1
            if number % 10 == 0:
                anonymous.append(anonymous_bytes())
                most_bytes = max(most_bytes, store.blobs.stats().bytes)
        replaced = store.blobs.stats().replaced
    row: dict[str, object] = {
        "passed_bytes": passed,
        "budget_bytes": budget,
        "most_stored_bytes": most_bytes,
        "replaced": replaced,
        "memory_at_start_bytes": anonymous[0],
        "memory_most_bytes": max(anonymous),
        "memory_at_end_bytes": anonymous[-1],
    }
    grown = (max(anonymous) - anonymous[0]) / 1e6
    print(f"{passed / 1e9:.2f} GB through a budget of {budget / 1e9:.2f} GB: at most {most_bytes / 1e9:.2f} GB stored")
    print(f"memory {grown:+.1f} MB at most")
    return row


def anonymous_bytes() -> int:
    """Memory of this process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
