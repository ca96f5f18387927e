"""`epic-rag ingest` as a user types it: dry run, watch, jobs, patterns, standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from corpus import write_corpus
from rich.console import Console

from epic_rag.cli import show
from epic_rag.schema import IngestReport


@pytest.fixture
def environment(tmp_path: Path, tiny_folder: Path) -> dict[str, str]:
    known = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in known if name in os.environ} | {
        "EPIC_RAG_CACHE": str(tmp_path / "cache"),
        "EPIC_RAG_MODEL": str(tiny_folder),
        "EPIC_RAG_STORE": str(tmp_path / "store"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def start(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "epic_rag", "ingest", *arguments, "--json"],
        cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ingest(folder: Path, environment: dict[str, str], *arguments: str, stdin: str = "", code: int = 0) -> IngestReport:
    process = start(folder, environment, *arguments)
    out, err = process.communicate(stdin, timeout=300)
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    return IngestReport(**json.loads(out)) if out else IngestReport()


def test_a_dry_run_makes_no_store_and_a_pattern_and_stdin_fill_one(tmp_path: Path, environment: dict[str, str]) -> None:
    write_corpus(tmp_path / "docs", 3)
    (tmp_path / "docs" / "note.md").write_text("# Note\n\nwords")
    plan = ingest(tmp_path, environment, "docs", "--dry-run")
    assert (plan.added, plan.dry_run, plan.bytes) == (4, True, 0)
    assert not (tmp_path / "store").exists()
    rows = '{"id": "a", "text": "the vault"}\n{"text": "the pier"}\n'
    real = ingest(tmp_path, environment, "docs/**/*.md", "-", "--jobs", "2", stdin=rows)
    assert (real.added, real.encoded, real.errors) == (3, 3, [])


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_a_watch_tells_each_ingest_on_a_line_and_ends_with_ctrl_c(tmp_path: Path, environment: dict[str, str]) -> None:
    docs = write_corpus(tmp_path / "docs", 2)
    process = start(tmp_path, environment, "docs", "--watch")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["added"] == 2
    (docs / "new.md").write_text("# New\n\nwords")
    assert json.loads(process.stdout.readline())["added"] == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    again = ingest(tmp_path, environment, "docs")
    assert (again.skipped, again.encoded) == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("docs", "--watch", "--dry-run"), "exclude each other"),
        (("-", "--watch"), "standard input ends"),
        (("-", "--prune"), "never pruned"),
        (("docs", "--jobs", "0"), "jobs must be between"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, environment: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    write_corpus(tmp_path / "docs", 1)
    process = start(tmp_path, environment, *arguments)
    out, err = process.communicate("", timeout=300)
    assert (process.returncode, out) == (2, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err


def test_the_bar_shows_tokens_per_second_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(show, "Console", lambda **_: console)
    with show.ingest_progress(quiet=False) as tell:
        assert tell is not None
        tell("read", 3, 0)
        for done in (0, 512, 1024):
            tell("encode", done, 4096)
            time.sleep(0.002)
    told = screen.getvalue()
    assert "encode tokens" in told
    assert "1024/4096" in told
    assert "tokens/s" in told


def test_a_dry_run_is_worded_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    report = IngestReport(
        added=2, chunks=5, encoded=4, reused=1, tokens=900, encoded_tokens=700, dry_run=True, ignored=3
    )
    show.show_ingest(report, as_json=False)
    out = capsys.readouterr().out
    assert "nothing was written" in out
    assert "to encode: 700 of 900 tokens" in out
    assert "3 hidden or of unknown suffix" in out
