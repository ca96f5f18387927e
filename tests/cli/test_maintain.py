"""verify, prune, export and import as a user types them; nothing here may end in a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus
from tiny_models import make_tiny

from epic_rag.ingest import ingest

Run = Callable[..., tuple[str, str]]
KEY = "ab" * 32


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    engine = make_engine(folder / "store", make_tiny("llama"))
    ingest(engine, [write_corpus(folder / "docs")])
    engine.close()
    return folder / "store"


@pytest.fixture
def folder(tmp_path: Path, original: Path) -> Path:
    """A folder with a filled store."""
    shutil.copytree(original, tmp_path / "store")
    return tmp_path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `epic-rag` in a process of its own; checks the exit code."""

    def run(*arguments: str, code: int = 0, key: str | None = None) -> tuple[str, str]:
        known = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
        environment = {name: os.environ[name] for name in known if name in os.environ}
        environment |= {"EPIC_RAG_CACHE": str(tmp_path / "cache"), "EPIC_RAG_STORE": "store", "OMP_NUM_THREADS": "1"}
        if key is not None:
            environment["EPIC_RAG_STORE_KEY"] = key
        done = subprocess.run(
            [sys.executable, "-m", "epic_rag", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        assert key is None or key not in done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def damage(folder: Path, count: int) -> list[str]:
    """Flip the last byte of some blobs; returns their names."""
    paths = sorted((folder / "store" / "blobs").rglob("*.safetensors"))[:count]
    for path in paths:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    return [path.stem for path in paths]


def test_verify_counts_the_damaged_and_mends(folder: Path, run: Run) -> None:
    good = json.loads(run("verify", "--json")[0])
    assert good == {
        "store": "store", "checked": good["checked"], "damaged": [], "unreadable": [], "quarantined": False,
    }  # fmt: skip
    assert good["checked"] > 8
    names = damage(folder, 2)
    report = json.loads(run("verify", "--json", code=1)[0])
    assert [entry["name"] for entry in report["damaged"]] == names
    assert "checksum" in report["damaged"][0]["reason"]
    out, err = run("verify", code=1)
    assert f"checked: {good['checked']}, 2 damaged" in out
    assert "mend: `epic-rag verify --quarantine`" in out
    assert err.count("damaged: ") == 2
    run("verify", "--quarantine", code=1)
    out, _ = run("verify")
    assert f"checked: {good['checked'] - 2}, 0 damaged" in out


def test_a_store_is_exported_and_imported(folder: Path, run: Run) -> None:
    (damaged,) = damage(folder, 1)
    out, err = run("export", "copy?codec=lz4", code=1)
    assert f"left out: {damaged}: " in err
    assert "1 left out" in out
    report = json.loads(run("export", "copy?codec=lz4", "--json", code=1)[0])
    assert (report["source"], report["target"]) == ("store", "copy?codec=lz4")
    assert (report["copied"], [entry["name"] for entry in report["left_out"]]) == (0, [damaged])
    assert report["present"] > 8
    back = json.loads(run("import", "copy", "--store", "third", "--json")[0])
    assert (back["copied"], back["present"], back["left_out"]) == (report["present"], 0, [])
    assert json.loads(run("verify", "--store", "third", "--json")[0])["checked"] == report["present"]


def test_prune_removes_or_only_says_so(folder: Path, run: Run) -> None:
    before = json.loads(run("stats", "--json")[0])
    out, _ = run("prune", "--unused", "--dry-run")
    assert "would remove: none, 0.0 MB" in out
    assert "undecided: 1, kept" in out
    report = json.loads(run("prune", "--budget", f"{before['bytes'] // 2}", "--json")[0])
    assert report["removed"]["budget"] > 0
    assert report["kept_bytes"] <= before["bytes"] // 2
    assert report["dry_run"] is False
    assert json.loads(run("stats", "--json")[0])["entries"] < before["entries"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "--store", "nowhere"), "no store at 'nowhere'"),
        (("prune",), "say what with --profile, --unused or --budget"),
        (("prune", "--budget", "much"), "expected a size such as 500MB"),
        (("prune", "--profile", "0123456789"), "0 profiles begin so"),
        (("export", "ftp://somewhere"), "'ftp' is unknown"),
        (("export", "copy?codec=lz9"), "lz9"),
        (("import", "nowhere"), "no store at 'nowhere'"),
        (("import",), "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, run: Run, arguments: tuple[str, ...], words: str) -> None:
    out, err = run(*arguments, code=2)
    assert words in " ".join((out + err).split())


def test_a_store_without_a_key_is_refused_with_one_until_it_is_taken_over(folder: Path, run: Run) -> None:
    checked = json.loads(run("verify", "--json")[0])["checked"]
    for command in (("verify",), ("stats",), ("export", "copy")):
        _, err = run(*command, code=2, key=KEY)
        assert "written without a secret key" in " ".join(err.split())
    assert json.loads(run("verify", "--json")[0])["damaged"] == []
    assert json.loads(run("export", "sealed", "--seal", "--json", key=KEY)[0])["copied"] == checked
    assert json.loads(run("verify", "--store", "sealed", "--json", key=KEY)[0])["checked"] == checked + 1
    for key in (None, KEY[::-1]):
        _, err = run("verify", "--store", "sealed", code=2, key=key)
        assert "EPIC_RAG_STORE_KEY" in err
    _, err = run("stats", code=2, key="letmein")
    assert "EPIC_RAG_STORE_KEY" in err
    assert "letmein" not in err
