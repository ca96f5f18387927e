"""The KV store's speed, each beside its raw limit in the same interleaved run.

    python -m benchmarks.bench_store [--rounds 15] [--entries 100000] [--through-mb 1000] [--only disk,redis,...]

The KV is SmolLM2's of the example documents: 16 chunks of 256 tokens, 4096 tokens in all, behind a warm prefix.

* disk    4096 tokens from files in the page cache into preallocated tensors, every byte checked; the limit is a plain
          copy of the same mapped files into the same tensors, which checks nothing
* redis   the same chunks from a redis-server on loopback; the limit is raw pipelined GETs of values of the same size
* codecs  bytes saved, GB/s of plain KV each way, error relative to the root mean square
* small   very many small entries on disk: seconds to open, and to get one
* flat    memory while data passes through a store whose budget is a tenth of it
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.common import ROOT, provenance, save, spread
from benchmarks.store_scale import bench_flat, bench_small
from epic_rag.config import cache_folder
from epic_rag.encode import Encoder
from epic_rag.encoding import make_profile
from epic_rag.engine import model_spec
from epic_rag.kvstore.codecs import CODECS
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.filling import unpack_into
from epic_rag.kvstore.folder import Folder
from epic_rag.kvstore.format import pack
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.mac import Authenticator
from epic_rag.kvstore.openblob import ViewBlob
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.uri import open_store
from epic_rag.model import load_model
from epic_rag.prompt import prompt_frame

CHUNK_TOKENS, NUM_CHUNKS = 256, 16
PART_BYTES = 2 << 20
SECRET = b"a secret for the benchmark alone"

Section = dict[str, object]


class Sample:
    """Real KV, its keys, and tensors that it is read into."""

    def __init__(self, model: str | None) -> None:
        language_model = load_model(model_spec(model), cache_folder=cache_folder())
        texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "documents").rglob("*.md"))]
        ids = language_model.tokenizer.encode("\n\n".join(texts))
        cut = [tuple(ids[i : i + CHUNK_TOKENS]) for i in range(0, len(ids) - CHUNK_TOKENS, CHUNK_TOKENS)]
        self.profile = make_profile(language_model, prompt_frame(language_model.tokenizer), "warm:600", cut)
        encoder = Encoder(language_model, self.profile.prefix_ids)
        self.name, self.ids = language_model.name, cut[:NUM_CHUNKS]
        self.chunks = [encoder.encode(chunk) for chunk in self.ids]
        self.keys = [chunk_key(self.profile, chunk) for chunk in self.ids]
        self.num_bytes = sum(kv.keys.nbytes + kv.values.nbytes for kv in self.chunks)
        num_layers, num_kv_heads, _, head_dim = self.chunks[0].keys.shape
        shape = (num_layers, num_kv_heads, NUM_CHUNKS * CHUNK_TOKENS, head_dim)
        self.whole_keys, self.whole_values = (torch.zeros(shape, dtype=self.chunks[0].keys.dtype) for _ in range(2))
        self.out = [
            tuple(whole[:, :, i : i + CHUNK_TOKENS] for whole in (self.whole_keys, self.whole_values))
            for i in range(0, shape[2], CHUNK_TOKENS)
        ]

    def put(self, store: KVStore) -> None:
        """Store every chunk."""
        for key, kv in zip(self.keys, self.chunks, strict=True):
            store.put(key, kv, profile=self.profile, encode_seconds=1.0)

    def read(self, store: KVStore) -> None:
        """Read every chunk into the tensors."""
        for key, ids, out in zip(self.keys, self.ids, self.out, strict=True):
            if store.get(key, ids, out=out) is None:
                raise RuntimeError("a chunk was not there")

    def check(self) -> None:
        """Check that the tensors hold the chunks, and empty them."""
        for kv, (keys, values) in zip(self.chunks, self.out, strict=True):
            if not (torch.equal(kv.keys, keys) and torch.equal(kv.values, values)):
                raise RuntimeError("other KV was read than was stored")
        self.whole_keys.zero_()
        self.whole_values.zero_()


def interleave(rounds: int, ways: Mapping[str, Callable[[], object]], num_bytes: int, limit: str) -> Section:
    """Time all ways in turn; GB/s, and the share of the limit's, each of the median."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = perf_counter()
            way()
            seconds[name].append(perf_counter() - began)
    rows: Section = {}
    print(f"{'':>34} {'GB/s':>6} {'best':>6} {'of limit':>8}")
    for name, times in seconds.items():
        share = median(seconds[limit]) / median(times)
        speed = {"median": num_bytes / median(times) / 1e9, "best": num_bytes / min(times) / 1e9}
        rows[name] = {"seconds": spread(times), "gb_per_second": speed, "share_of_limit": share}
        print(f"{name:>34} {speed['median']:6.2f} {speed['best']:6.2f} {share:8.2f}")
    return rows


def bench_disk(sample: Sample, scratch: Path, rounds: int) -> Section:
    """Files in the page cache to preallocated tensors."""
    store = KVStore(DiskStore(scratch / "plain"))
    sealed = KVStore(DiskStore(scratch / "sealed"), mac_key=SECRET)
    sample.put(store)
    sample.put(sealed)
    folder = Folder(scratch / "plain")
    shape = sample.chunks[0].keys.shape
    length = sample.chunks[0].keys.nbytes * 2

    def limit() -> None:
        for key, (keys, values) in zip(sample.keys, sample.out, strict=True):
            with folder.path(key).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            flat = torch.frombuffer(mapped, dtype=keys.dtype, offset=len(mapped) - length)
            planes = flat.view(shape[0], 2, *shape[1:])
            keys.copy_(planes[:, 0])
            values.copy_(planes[:, 1])

    def mapped() -> None:
        for key, ids in zip(sample.keys, sample.ids, strict=True):
            if store.get(key, ids) is None:
                raise RuntimeError("a chunk was not there")

    limit()
    sample.check()
    sample.read(store)
    sample.check()
    ways = {
        "limit: mapped file to tensors": limit,
        "get into tensors": lambda: sample.read(store),
        "get, as a mapping": mapped,
        "get into tensors, with a MAC": lambda: sample.read(sealed),
    }
    rows = interleave(rounds, ways, sample.num_bytes, "limit: mapped file to tensors")
    store.close()
    sealed.close()
    return rows


@contextmanager
def redis_server(scratch: Path) -> Iterator[int]:
    """A redis-server of our own on a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(scratch)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()


def bench_redis(sample: Sample, scratch: Path, rounds: int) -> Section:
    """A server on loopback; the raw values are the same bytes in values of the same size."""
    if shutil.which("redis-server") is None:
        print("skipped: redis-server is not installed")
        return {"skipped": "redis-server is not installed"}
    import redis

    with redis_server(scratch) as port, open_store(f"redis://127.0.0.1:{port}?part=2MiB&timeout=5") as store:
        sample.put(store)
        client, raw = redis.Redis("127.0.0.1", port), []
        for key in sample.keys:
            data = bytes(store.blobs.get(key) or b"")
            names = [f"raw:{key}:{start}" for start in range(0, len(data), PART_BYTES)]
            for number, name in enumerate(names):
                client.set(name, data[number * PART_BYTES : (number + 1) * PART_BYTES])
            raw.append(names)

        def limit() -> None:
            for names in raw:
                with client.pipeline(transaction=False) as pipe:
                    for name in names:
                        pipe.get(name)
                    pipe.execute()

        sample.read(store)
        sample.check()
        ways = {
            "limit: pipelined GETs": limit,
            "the tier alone": lambda: store.blobs.get_many(sample.keys),
            "get into tensors": lambda: sample.read(store),
            "get_many": lambda: store.get_many(list(zip(sample.keys, sample.ids, strict=True))),
        }
        return interleave(rounds, ways, sample.num_bytes, "limit: pipelined GETs")


def bench_codecs(sample: Sample, rounds: int) -> Section:
    """Packing and unpacking in memory, one thread as configured, checksums included."""
    rows: Section = {}
    print(f"{'':>16} {'ratio':>6} {'pack':>6} {'unpack':>6} {'keys rms':>9} {'values rms':>10}")
    for codec, key in [(codec, None) for codec in CODECS] + [("none", Authenticator(SECRET))]:
        blobs: list[bytes] = []
        packing, unpacking = [], []
        for _ in range(max(3, rounds // 3)):
            began = perf_counter()
            packed = [pack(k, kv, "", 1.0, codec, key) for k, kv in zip(sample.keys, sample.chunks, strict=True)]
            packing.append(perf_counter() - began)
            blobs = [b"".join(parts) for parts in packed]
            began = perf_counter()
            for k, blob, out in zip(sample.keys, blobs, sample.out, strict=True):
                unpack_into(ViewBlob(memoryview(blob)), k, out, key)
            unpacking.append(perf_counter() - began)
        row: dict[str, float] = {
            "ratio": sample.num_bytes / sum(map(len, blobs)),
            "pack_gb_per_second": sample.num_bytes / median(packing) / 1e9,
            "unpack_gb_per_second": sample.num_bytes / median(unpacking) / 1e9,
            "keys_rms_error": relative_error([kv.keys for kv in sample.chunks], sample.whole_keys),
            "values_rms_error": relative_error([kv.values for kv in sample.chunks], sample.whole_values),
        }
        name = codec if key is None else f"{codec} with a MAC"
        rows[name] = row
        speeds = f"{row['pack_gb_per_second']:6.2f} {row['unpack_gb_per_second']:6.2f}"
        print(f"{name:>16} {row['ratio']:6.3f} {speeds} {row['keys_rms_error']:9.2%} {row['values_rms_error']:10.2%}")
    return rows


def relative_error(planes: list[torch.Tensor], whole: torch.Tensor) -> float:
    """Root mean square of the error over that of the numbers."""
    exact = torch.cat(planes, 2).float()
    return float((whole.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def main() -> None:
    """Measure, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--through-mb", type=int, default=1000, help="megabytes for `flat`")
    parser.add_argument("--only", default="disk,redis,codecs,small,flat")
    parser.add_argument("--name", default="store")
    options = parser.parse_args()
    record = provenance("benchmarks.bench_store")
    sample = Sample(options.model)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sections: dict[str, Callable[[], Section]] = {
            "disk": lambda: bench_disk(sample, scratch, options.rounds),
            "redis": lambda: bench_redis(sample, scratch, options.rounds),
            "codecs": lambda: bench_codecs(sample, options.rounds),
            "small": lambda: bench_small(sample.profile, scratch, options.entries),
            "flat": lambda: bench_flat(sample.profile, sample.chunks[0], scratch, options.through_mb * 1_000_000),
        }
        results: Section = {}
        for name in options.only.split(","):
            print(f"\n{name}")
            results[name] = sections[name]()
    settings = {"model": sample.name, "threads": torch.get_num_threads(), **vars(options)}
    settings |= {
        "tokens": NUM_CHUNKS * CHUNK_TOKENS,
        "kv_bytes": sample.num_bytes,
        "cpus": len(os.sched_getaffinity(0)),
    }
    save(options.name, {**record, "settings": settings, "results": results})


if __name__ == "__main__":
    main()
