"""Memory stays within what the KV itself needs. Each case runs in a process of its own and reports its peak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import write_corpus

from epic_rag.model import LanguageModel

PEAK = """
import sys
from pathlib import Path

def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")

def peak_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

def now_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
"""

ASK = """
from epic_rag.ask import AskOptions, ask
from epic_rag.config import cache_folder
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine
from epic_rag.kvstore.uri import open_store
from epic_rag.model import load_model
from epic_rag.retrieve import Retrieved
from epic_rag.retrievers.index import PassageIndex

model = load_model("demo", cache_folder=cache_folder(), dtype="bfloat16", device="cpu")
passages = [Retrieved("", tuple(range(1000 + 300 * i, 1256 + 300 * i)), str(i), i, 0.0) for i in range(16)]
options = AskOptions(k=16, selector=sys.argv[2], decode=DecodeOptions(max_tokens=4))
engine = Engine(model, open_store(sys.argv[1]), PassageIndex(None))
if sys.argv[3] == "fill":
    list(ask(engine, "What is it?", options, passages))
else:
    list(ask(engine, "What is it?", options, passages[:1]))
    before = now_bytes()
    reset_peak()
    *_, answer = ask(engine, "What is it?", options, passages)
    assert answer.tokens.context > 4096 and answer.tokens.encoded == 0
    print((peak_bytes() - before) / (answer.tokens.context * model.kv_bytes_per_token))
"""

INGEST = """
sys.path.insert(0, sys.argv[2])
from tiny_models import make_hf, make_tokenizer
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.kvstore.uri import open_store
from epic_rag.model import LanguageModel
from epic_rag.retrievers.index import PassageIndex

hf = make_hf("llama", num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
engine = Engine(LanguageModel(hf, make_tokenizer(), "tiny", "f"), open_store(sys.argv[1]), PassageIndex(None))
peaks = []

def progress(step, done, total):
    if step == "encode" and (done == total or (not peaks and done >= total / 4)):
        peaks.append(peak_bytes())

report = ingest(engine, [Path(sys.argv[3])], None, progress)
assert report.encoded == report.chunks > 200, report
print(peaks[1] - peaks[0], report.bytes)
"""


def run(program: str, *arguments: str) -> list[float]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from /proc, which this system does not have")
    done = subprocess.run(
        [sys.executable, "-c", PEAK + program, *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.mark.model
@pytest.mark.parametrize("selector", ["lego:4", "lego:16"])
def test_asking_over_4k_tokens_adds_at_most_three_times_the_kv(
    selector: str, smollm: LanguageModel, tmp_path: Path
) -> None:
    run(ASK, str(tmp_path), selector, "fill")
    (times,) = run(ASK, str(tmp_path), selector, "measure")
    print(f"{selector}: {times:.2f} times the bytes of the KV")
    assert 0.5 < times < 3.0


def test_ingest_of_200_files_stays_flat(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", 200, sentences=6)
    grown, written = run(INGEST, str(tmp_path / "store"), str(Path(__file__).parent), str(corpus))
    print(f"peak grew by {grown / 1e6:.1f} MB between a quarter and the end, while {written / 1e6:.0f} MB were stored")
    assert written > 500e6
    assert grown < 40e6
