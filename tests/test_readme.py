"""What the README says is what was measured, and what it shows runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from epic_rag.model import LanguageModel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_figure_is_that_of_its_json() -> None:
    from benchmarks.report import TABLES, filled

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"FIGURES:(\w+)", text)) == set(TABLES)
    assert filled(text) == text, "run: python -m benchmarks.report"


def test_every_link_leads_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.model
def test_the_langchain_lines_run(
    smollm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from corpus import make_engine

    from epic_rag.ingest import ingest

    monkeypatch.chdir(tmp_path)
    engine = make_engine(tmp_path / "my-store", smollm)
    ingest(engine, [ROOT / "examples" / "documents" / "science" / "telescope-manual.rst"])
    engine.close()
    block = re.search(
        r"```python\n(from epic_rag import EpicRAG.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    assert block
    exec(compile(block[1], "README.md", "exec"), {"__name__": "readme"})
    assert "telescope-manual.rst disk" in capsys.readouterr().out
    assert "epic_rag" in sys.modules
