"""`epic-rag config` as a user types it, and what is configured as the other commands take it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import write_corpus

Run = Callable[..., tuple[str, str]]
QUESTION = "What is fact 3 of the telescope worth?"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `epic-rag` in a process of its own; checks the exit code."""
    known = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    environment |= {"HOME": str(tmp_path / "home"), "EPIC_RAG_CACHE": str(tmp_path / "cache")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}

    def run(*arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "epic_rag", *arguments],
            cwd=tmp_path, env=environment | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def test_every_command_has_the_options_that_are_configured_for_it() -> None:
    from typer.main import get_command

    from epic_rag.cli.app import app
    from epic_rag.cli.settings import TAKEN
    from epic_rag.settings import table

    for path, names in TAKEN.items():
        command = get_command(app)
        for word in path:
            command = command.commands[word]
        assert set(names) - {option.name for option in command.params} == set(), path
        assert set(names) <= {row.name for row in table()}


def test_show_tells_values_and_origins_and_hides_secrets(tmp_path: Path, run: Run) -> None:
    user = tmp_path / "home" / ".config" / "epic-rag" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('selector = "none"\nk = 2\n')
    project = tmp_path / "epic-rag.toml"
    project.write_text("# of this project\nk = 3\n")
    secrets = {"EPIC_RAG_SALT": "pepper", "EPIC_RAG_STORE_KEY": "k" * 40, "EPIC_RAG_STORE": "redis://ann:hush@host/0"}
    out, err = run("config", "show", **secrets, EPIC_RAG_TEMPERATURE="1")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert lines["k"] == ["3", f"{project}:2"]
    assert lines["selector"] == ["none", f"{user}:1"]
    assert lines["temperature"] == ["1.0", "EPIC_RAG_TEMPERATURE"]
    assert lines["store"] == ["redis://***@host/0", "EPIC_RAG_STORE"]
    assert lines["salt"] == ["***", "EPIC_RAG_SALT"]
    assert lines["store_key"] == ["***", "EPIC_RAG_STORE_KEY"]
    assert lines["max_tokens"] == ["128", "default"]
    told = json.loads(run("config", "show", "--json", **secrets)[0])
    assert set(told["k"]) == {"value", "origin", "variable", "meaning"}
    assert (told["k"]["value"], told["k"]["variable"]) == (3, "EPIC_RAG_K")
    assert (told["store_key"]["value"], told["seed"]["value"]) == ("***", None)
    helped = "".join(run(command, "--help", **secrets)[0] for command in ("ask", "chat", "ingest", "stats", "verify"))
    shown = out + err + json.dumps(told) + helped
    assert [secret for secret in ("pepper", "k" * 40, "hush") if secret in shown] == []


def test_path_names_the_files(tmp_path: Path, run: Run) -> None:
    out, _ = run("config", "path")
    assert out.splitlines() == [
        f"{tmp_path}/epic-rag.toml  (project, not there)",
        f"{tmp_path}/home/.config/epic-rag/config.toml  (user, not there)",
    ]
    (tmp_path / "epic-rag.toml").write_text("k = = 3")
    (tmp_path / "pyproject.toml").write_text("[tool.epic-rag]\nk = 3")
    files = json.loads(run("config", "path", "--json")[0])["files"]
    assert [(Path(file["path"]).name, file["scope"], file["exists"]) for file in files] == [
        ("epic-rag.toml", "project", True),
        ("pyproject.toml", "project", True),
        ("config.toml", "user", False),
    ]


def test_a_mistake_stops_commands_but_not_help(tmp_path: Path, run: Run) -> None:
    (tmp_path / "epic-rag.toml").write_text("kk = 3\n")
    for command in (("ask", QUESTION), ("ingest", "docs"), ("stats",), ("config", "show"), ("generate", "x")):
        out, err = run(*command, code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"error: {tmp_path}/epic-rag.toml:1: unknown setting 'kk': did you mean 'k'?")
    assert "--selector" in run("ask", "--help")[0]
    assert "ingest" in run("--help")[0]


def test_help_shows_the_defaults_and_what_is_configured(tmp_path: Path, run: Run) -> None:
    helped = run("ask", "--help")[0]
    for default in ("8", "lego:4", "128", "bm25", "0.0", "1.0", "auto"):
        assert f"[default: {default}]" in helped
    (tmp_path / "epic-rag.toml").write_text("k = 5\n")
    assert "[default: 5]" in run("ask", "--help")[0]
    assert "[default: 6]" in run("ask", "--help", EPIC_RAG_K="6")[0]


def test_commands_take_what_is_configured(tmp_path: Path, tiny_folder: Path, run: Run) -> None:
    write_corpus(tmp_path / "docs", 4)
    (tmp_path / "epic-rag.toml").write_text(
        f'model = "{tiny_folder}"\nstore = "kv"\nencoding = "prompt"\nk = 3\nselector = "lego:2"\nmax-tokens = 3\n'
        'policy = "tova"\nbudget = "50%"\n'
    )
    assert json.loads(run("ingest", "docs", "--json")[0])["encoding"] == "prompt"
    answer = json.loads(run("ask", QUESTION, "--json")[0])
    assert (len(answer["sources"]), answer["selector"], answer["policy"]) == (3, "lego:2", "tova")
    assert answer["tokens"]["answer"] <= 3
    answer = json.loads(run("ask", QUESTION, "--json", EPIC_RAG_K="2", EPIC_RAG_SELECTOR="none")[0])
    assert (len(answer["sources"]), answer["selector"]) == (2, "none"), "a variable overrides the file"
    asked = ("ask", QUESTION, "--k", "1", "--selector", "full", "--json")
    answer = json.loads(run(*asked, EPIC_RAG_K="2", EPIC_RAG_SELECTOR="none")[0])
    assert (len(answer["sources"]), answer["selector"]) == (1, "full"), "the command line overrides both"
    only = ("--where", "source=docs/bakery*", "--json")
    answer = json.loads(run("ask", QUESTION, *only)[0])
    assert {source["source"] for source in answer["sources"]} == {"docs/bakery-1.txt"}
    assert "where names 'colour'" in run("ask", QUESTION, "--where", "colour=red", code=2)[1]
    kept = json.loads(run("prune", "--unused", "--dry-run", "--json")[0])
    assert kept["kept_bytes"] > 0, "the budget of answers is not that of the store"
    assert json.loads(run("stats", "--json", "--store", "")[0])["store"] == f"disk://{tmp_path}/kv"
