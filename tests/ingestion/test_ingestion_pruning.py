from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions, ingest

PRUNE = IngestOptions(prune=True)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_pattern_prunes_what_it_names_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    engine, docs = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 3)
    for name in ("a.md", "b.md"):
        (docs / name).write_text(f"words of {name}")
    folder = docs if absolute else Path("docs")
    ingest(engine, [folder])
    for path in [docs / "a.md", *docs.glob("*.txt")]:
        path.unlink()
    assert ingest(engine, [folder / "*.md"], PRUNE).deleted == 1
    assert engine.index.num_documents == 4
    assert ingest(engine, [folder], PRUNE).deleted == 3


def test_prune_can_look_under_more_than_was_ingested(tmp_path: Path) -> None:
    engine, docs = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 3)
    ingest(engine, [docs])
    first, second, third = sorted(docs.iterdir())
    first.unlink()
    second.write_text("other words")
    report = ingest(engine, [second], PRUNE, prune_under=[docs])
    assert (report.updated, report.deleted, report.skipped) == (1, 1, 0)
    assert list(engine.index.sources()) == [str(second), str(third)]
    emptied = ingest(engine, [], PRUNE, prune_under=[docs])
    assert (emptied.deleted, emptied.warnings) == (0, [])


def test_standard_input_alone_cannot_be_pruned(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="never pruned"):
        ingest(make_engine(tmp_path / "store"), [Path("-")], PRUNE)
