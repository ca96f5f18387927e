"""Dry runs: what they foresee is what happens, and nothing is written."""

from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.engine import Engine
from epic_rag.ingest import IngestOptions, ingest
from epic_rag.ingestion.survey import Survey
from epic_rag.schema import Change, IngestReport


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def foreseen(engine: Engine, paths: list[Path], **options: object) -> IngestReport:
    return ingest(engine, paths, IngestOptions(dry_run=True, **options))  # type: ignore[arg-type]


def counts(report: IngestReport) -> tuple[int, ...]:
    counted = (report.added, report.updated, report.skipped, report.deleted)
    return (*counted, report.chunks, report.encoded, report.reused, report.tokens, report.encoded_tokens)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dry_run_foresees_a_first_ingest(tmp_path: Path, jobs: int) -> None:
    engine, corpus = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 4)
    (corpus / "same.txt").write_text((corpus / "bakery-1.txt").read_text())
    (corpus / "empty.md").touch()
    plan = foreseen(engine, [corpus], jobs=jobs)
    assert plan.dry_run
    assert plan.changes == [Change("add", str(path)) for path in sorted(corpus.glob("*.txt"))]
    assert (engine.index.num_documents, engine.store.stats().entries, engine.store.profiles()) == (0, 0, [])
    real = ingest(engine, [corpus])
    assert counts(plan) == counts(real)
    assert plan.errors == real.errors
    assert (plan.bytes, plan.encoding, real.changes, real.dry_run) == (0, "", [], False)


def test_a_dry_run_foresees_a_later_one(tmp_path: Path) -> None:
    engine, corpus = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 6, sentences=20)
    ingest(engine, [corpus])
    files = sorted(corpus.iterdir())
    files[0].unlink()
    files[1].write_text(files[1].read_text() + " One more fact.")
    (corpus / "new.md").write_text("# New\n\nwords")
    kept = engine.index.document_passages(str(files[3]))[0]
    engine.store.delete(engine.loader.key(kept.token_ids))
    before = files_of(tmp_path / "store"), engine.index.state
    plan = foreseen(engine, [corpus], prune=True)
    assert (files_of(tmp_path / "store"), engine.index.state) == before
    assert plan.changes == [
        Change("update", str(files[1])), Change("add", str(corpus / "new.md")), Change("delete", str(files[0]))
    ]  # fmt: skip
    assert counts(plan) == counts(ingest(engine, [corpus], IngestOptions(prune=True)))
    assert plan.encoded >= 3


def test_another_encoding_would_encode_all(tmp_path: Path) -> None:
    engine, corpus = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 3)
    ingest(engine, [corpus])
    same, other = foreseen(engine, [corpus], encoding="warm:600"), foreseen(engine, [corpus], encoding="none")
    assert (same.encoded, other.encoded) == (0, other.chunks)


def test_a_chunk_in_two_places_is_missing_once(tmp_path: Path) -> None:
    report = IngestReport()
    survey = Survey(make_engine(tmp_path / "store").loader, report)
    survey.add("a", [(1, 2), (3,), (1, 2)])
    survey.add("b", [(3,), (4, 5)])
    assert survey.missing == {"a": [0, 1], "b": [1]}
    assert (report.chunks, report.reused, report.tokens, survey.missing_tokens) == (5, 2, 8, 5)
