"""Every example runs with the demo model and prints what it promises."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from redis_servers import server

from epic_rag.config import cache_folder
from epic_rag.model import LanguageModel

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("0*.py"))
NAME_OF_THE_STARTER = "Hortensia"

pytestmark = pytest.mark.model

Run = Callable[[str], str]


@pytest.fixture
def run(
    smollm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a script in an empty folder, with the demo model and no settings, and returns what it prints."""
    for name in ("models", "fingerprints"):  # converted before; indexes beside Redis are kept there too
        (cache_folder() / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / name).symlink_to(cache_folder() / name)
    for name in ("MODEL", "STORE", "SALT", "STORE_KEY"):
        monkeypatch.delenv(f"EPIC_RAG_{name}", raising=False)
    monkeypatch.setenv("EPIC_RAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def started(script: str) -> str:
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return started


def test_01_finds_the_answer_and_names_its_source(run: Run) -> None:
    output = run("01_ask.py")
    assert re.search(rf"^answer: .*{NAME_OF_THE_STARTER}", output, re.MULTILINE)
    assert "source: bakery-bread-process.md line 1" in output


def test_02_encodes_nothing_the_second_time(run: Run) -> None:
    first, second = run("02_disk_store.py"), run("02_disk_store.py")
    assert "encoded now: 3, found in the store: 0" in first
    assert "encoded now: 0, found in the store: 3" in second
    for output in (first, second):
        assert NAME_OF_THE_STARTER in output
        assert int(output.rpartition(":")[2]) > 300


def test_03_shares_what_it_encodes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(tmp_path / "redis") as redis:
        monkeypatch.setenv("REDIS_URL", redis.uri)
        assert "encoded now: 3, found in the store: 0" in run("03_redis_tier.py")
        second = run("03_redis_tier.py")
    assert "encoded now: 0, found in the store: 3" in second
    assert NAME_OF_THE_STARTER in second


def test_03_says_that_there_is_no_redis(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:geheim@127.0.0.1:1")
    with pytest.raises(SystemExit, match=r"no Redis to work with; start one, or set REDIS_URL: .*refused") as caught:
        run("03_redis_tier.py")
    assert "geheim" not in str(caught.value)


def test_04_asks_its_own_retriever_and_stores_what_it_found(run: Run) -> None:
    output = run("04_own_retriever.py")
    assert re.search(r"^answer: .*Heron", output, re.MULTILINE)
    assert re.search(r"asked again: [1-9]\d* tokens from the store, 0 encoded", output)


def test_05_holds_a_conversation(run: Run) -> None:
    output = run("05_chat_history.py")
    assert len(re.findall(r"^assistant: \S", output, re.MULTILINE)) == 2
    assert NAME_OF_THE_STARTER in output
    first, second = map(int, re.findall(r"\((\d+) tokens of context", output))
    assert 0 < first < second


def test_06_keeps_what_the_budget_allows(run: Run) -> None:
    found = re.findall(r"^budget (\S+): (\d+) of (\d+) tokens kept", run("06_kv_budget.py"), re.MULTILINE)
    assert [budget for budget, _, _ in found] == ["none", "75%", "50%"]
    for (_, kept, total), share in zip(found, (1.0, 0.75, 0.5), strict=True):
        assert int(kept) <= share * int(total) + 1


def test_07_skips_updates_and_deletes(run: Run) -> None:
    first, again, changed, answer = run("07_index.py").splitlines()
    assert "'num_added': 3, 'num_updated': 0, 'num_skipped': 0, 'num_deleted': 0" in first
    assert "'num_added': 0, 'num_updated': 0, 'num_skipped': 3, 'num_deleted': 0" in again
    assert "'num_added': 1, 'num_updated': 0, 'num_skipped': 1, 'num_deleted': 2" in changed
    assert answer == "The pool opens at eight."


def test_08_reads_documents_from_stored_kv(run: Run) -> None:
    output = run("08_chat_model.py")
    assert "Heron" in output.splitlines()[0]
    assert "'cache_creation': 0" in output
    assert re.search(r"'cache_read': [1-9]", output)


def test_the_notebook_runs_cell_by_cell(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], {cell["cell_type"] for cell in notebook["cells"]}) == (4, {"markdown", "code"})
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "outputs are not kept in the repository"
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    output = capsys.readouterr().out
    assert NAME_OF_THE_STARTER in output
    assert "Heron" in output
    assert "encoded the second time: 0" in output
    assert "50% - " in output


def test_a_script_runs_as_a_program_from_anywhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    done = subprocess.run([sys.executable, str(SCRIPTS[0])], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert NAME_OF_THE_STARTER in done.stdout


def test_every_example_is_listed_and_short() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")):
        assert f"[{example.name}]({example.name})" in listed
    assert len(SCRIPTS) == 8
    for script in SCRIPTS:
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 45, script.name
