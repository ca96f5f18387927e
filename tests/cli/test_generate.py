"""generate and eval ppl as a user types them; nothing here may end in a traceback."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path) -> Run:
    """Runs `epic-rag` in a process of its own; checks the exit code."""
    (tmp_path / "prompt.txt").write_text("The telescope is worth what it shows. " * 6, encoding="utf-8")
    (tmp_path / "other.txt").write_text("A second text, about something else. " * 5, encoding="utf-8")
    (tmp_path / "blob").write_bytes(bytes(range(256)) * 4)
    known = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    environment |= {"EPIC_RAG_CACHE": str(tmp_path / "cache"), "EPIC_RAG_MODEL": str(tiny_folder)}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "epic_rag", *arguments],
            cwd=tmp_path, env=environment, input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def test_generate_prints_the_agreed_json(run: Run) -> None:
    arguments = ("--budget", "25%", "--stride", "8", "--max-tokens", "5", "--dtype", "float32")
    told = json.loads(run("generate", "prompt.txt", *arguments, "--json")[0])
    assert set(told) == {
        "answer", "tokens", "kv_bytes", "timings", "policy", "budget", "mode", "stride", "compat", "model",
    }  # fmt: skip
    prompt = 1 + 38 * 6
    assert told["tokens"] == {"prompt": prompt, "kept": 57, "peak_slots": 65, "answer": told["tokens"]["answer"]}
    assert told["kv_bytes"] == {"peak": 65 * 512, "full": (prompt + 4) * 512}
    assert set(told["timings"]) == {f"{name}_seconds" for name in ("prefill", "decode", "ttft", "total")}
    assert (told["policy"], told["budget"], told["mode"], told["compat"]) == ("roco", 57, "auto", None)

    out, err = run("generate", "prompt.txt", *arguments)
    assert out == told["answer"] + "\n", "standard output holds the answer alone"
    assert "229 tokens, 57 kept" in err
    out, _ = run("generate", "-", *arguments, stdin="The telescope is worth what it shows. " * 6)
    assert out == told["answer"] + "\n"


def test_generate_takes_its_options(run: Run) -> None:
    sampled = ("--budget", "20", "--temperature", "1", "--seed", "4", "--max-tokens", "4", "--json")
    first, again = (json.loads(run("generate", "prompt.txt", *sampled)[0])["answer"] for _ in range(2))
    assert first == again
    others = ("--chat", "--compat", "easykv", "--mode", "encoding", "--stride", "4")
    compat = json.loads(run("generate", "prompt.txt", *others, *sampled)[0])
    assert (compat["compat"], compat["mode"], compat["policy"]) == ("easykv", "encoding", "roco")
    assert compat["tokens"]["prompt"] > 229, "the template's tokens are counted"


def test_perplexity_prints_json_and_lines(run: Run) -> None:
    arguments = ("eval", "ppl", "prompt.txt", "other.txt", "--dtype", "float32")
    told = json.loads(run(*arguments, "--budget", "25%", "--policy", "h2o", "--stride", "8", "--json")[0])
    assert set(told) == {"nll", "nll_standard_error", "perplexity", "texts", "policy", "budget", "stride", "model"}
    assert [(text["source"], text["tokens"], text["kept"]) for text in told["texts"]] == [
        ("prompt.txt", 228, 57),
        ("other.txt", 185, 46),
    ]
    assert told["perplexity"] == pytest.approx(math.exp(told["nll"]))
    assert told["nll_standard_error"] > 0
    out, _ = run(*arguments, "--max-tokens", "50")
    assert [line.split("  ")[1] for line in out.splitlines()] == ["prompt.txt", "other.txt", "mean of 2 texts"]
    assert "(49 tokens, at most 50 slots" in out


def test_closed_standard_input_is_told(tmp_path: Path, tiny_folder: Path) -> None:
    command = f"{sys.executable} -m epic_rag generate - --model {tiny_folder} <&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input is closed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "missing.txt"), "No such file or directory: 'missing.txt'"),
        (("generate", "blob"), "cannot read 'blob': looks binary"),
        (("generate", "-"), "there is no text: give a file or standard input"),
        (("generate", "prompt.txt", "--budget", "lots"), "'lots' is no KV budget: write tokens"),
        (("generate", "prompt.txt", "--max-tokens", "4000"), "the model knows 4096 positions"),
        (("generate", "prompt.txt", "--compat", "easykv"), "compat 'easykv' needs a budget"),
        (("eval", "ppl", "-", "prompt.txt", "-"), "standard input can be read once only, got '-' 2 times"),
        (("eval", "ppl", "prompt.txt", "--max-tokens", "1"), "--max-tokens must be at least 2, got 1"),
    ],
)
def test_mistakes_are_told_in_one_line(run: Run, arguments: tuple[str, ...], said: str) -> None:
    out, err = run(*arguments, code=2)
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
