"""`epic-rag eval` as a user types it; nothing here may end in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., tuple[str, str]]
METHODS = ("--method", "none,none", "--method", "none,full", "--method", "prompt,lego:4")
PLACES = ("pier", "mill", "vault", "tower", "dome", "garden")


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path) -> Run:
    """Runs `epic-rag eval` in a process of its own; checks the exit code."""
    docs = [
        f"The telescope of number {i} stands in the {place}, and the light is good." for i, place in enumerate(PLACES)
    ]
    rows = [
        {"id": str(i), "question": f"Where is telescope {i}?", "answers": [place], "docs": docs[: 3 + i % 2]}
        for i, place in enumerate(PLACES)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "hay").mkdir()
    (tmp_path / "hay" / "long.txt").write_text("The sea was calm and the boats came home. " * 80, encoding="utf-8")
    known = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    environment |= {"EPIC_RAG_CACHE": str(tmp_path / "cache"), "EPIC_RAG_MODEL": str(tiny_folder)}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "epic_rag", "eval", *arguments, "--dtype", "float32"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def test_a_run_is_told_as_json_kept_and_gone_on_with(run: Run, tmp_path: Path) -> None:
    arguments = ("jsonl:mine.jsonl", *METHODS, "--items", "4", "--out", "out")
    told = json.loads(run(*arguments, "--json")[0])
    assert (told["seed"], told["dtype"]) == (0, "float32")
    assert told["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    methods = told["tasks"]["jsonl:mine.jsonl"]["methods"]
    assert set(methods) == {"full", "bare", "none,none", "none,full", "prompt,lego:4"}
    for exact in ("full", "none,full"):
        assert methods[exact]["kl"]["value"] == pytest.approx(0, abs=1e-6)
        assert methods[exact]["agree"]["value"] == 1
    assert methods["none,none"]["kl"]["value"] > 1e-4
    assert methods["none,none"]["context_rows"]["value"] == 0
    assert 0 < methods["prompt,lego:4"]["context_rows"]["value"] < 1

    (records,) = (tmp_path / "out").glob("*.jsonl")
    (summary,) = (tmp_path / "out").glob("*.json")
    assert json.loads(summary.read_text())["tasks"] == told["tasks"]
    lines = records.read_text().splitlines()
    records.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    again = json.loads(run(*arguments, "--json")[0])
    for name, measures in again["tasks"]["jsonl:mine.jsonl"]["methods"].items():
        assert measures["kl"] == methods[name]["kl"]
    assert len(records.read_text().splitlines()) == len(lines)


def test_a_table_plots_and_greedy_answers(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, _ = run("run", "jsonl:mine.jsonl", *METHODS, "--items", "2", "--generate", "--plot", "--out", "out")
    assert "jsonl:mine.jsonl" in out
    assert "prompt,lego:4" in out
    assert "rank-4" in out
    assert "F1" in out
    drawn = list((tmp_path / "out").glob("*.png"))
    assert drawn
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn)


def test_a_needle_is_hidden_in_files_of_ones_own(run: Run, tmp_path: Path) -> None:
    arguments = ("needle:256", "--corpus", "hay", "--method", "none,none", "--items", "1", "--out", "out", "--json")
    told = json.loads(run(*arguments)[0])
    assert told["tasks"]["needle:256"]["methods"]["full"]["agree"]["value"] == 1
    assert [file.name for file in (tmp_path / "out").glob("*.json") if "corpus-hay" not in file.name] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("xqad:8",), "there is no task 'xqad:8'; there are:"),
        (("jsonl:nothing.jsonl",), "nothing.jsonl"),
        (("xquad:8", "--data", "empty"), "EPIC_RAG_EVAL_DATA"),
        (("jsonl:mine.jsonl", "--method", "warm:600"), "expected ENCODING,SELECTOR"),
        (("jsonl:mine.jsonl", "--method", "none,lago:4"), "method 'none,lago:4': unknown selector 'lago:4'"),
        (("jsonl:mine.jsonl", "--half", "third"), "expected one of tune, report"),
        (("jsonl:mine.jsonl", "--items", "0"), "--items must be at least 1, got 0"),
        (
            ("jsonl:mine.jsonl", "--store", "disk://s", "--method", "none,none,codec=int8"),
            "the codec is the store's own",
        ),
    ],
)
def test_mistakes_are_told_in_words(run: Run, arguments: tuple[str, ...], said: str) -> None:
    _, err = run(*arguments, "--out", "out", code=2)
    assert said in " ".join(err.split())
