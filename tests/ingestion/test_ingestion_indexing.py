import io
import sys
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.ingest import IngestOptions, ingest, ingest_documents
from epic_rag.ingestion.indexing import is_from_path
from epic_rag.loading import LoadedDocument, SkippedSource, make_document
from epic_rag.schema import IngestReport


def document(source: str, text: str) -> LoadedDocument:
    return make_document(source, "", text, has_lines=False)


def test_documents_of_a_program_are_ingested_as_files_are(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "store")
    items = [document("a", "one boat"), SkippedSource("b", "not mine"), document("c", "two boats")]
    first = ingest_documents(engine, iter(items))
    assert (first.added, first.encoded, first.chunks) == (2, 2, 2)
    assert [(error.source, error.reason) for error in first.errors] == [("b", "not mine")]
    again = ingest_documents(engine, items)
    assert (again.added, again.skipped, again.encoded, again.reused) == (0, 2, 0, 2)
    changed = ingest_documents(engine, [document("a", "three boats")])
    assert (changed.updated, changed.encoded) == (1, 1)
    assert [passage.text.strip() for passage in engine.index.passages()] == ["three boats", "two boats"]


def test_a_report_that_is_given_goes_on(tmp_path: Path) -> None:
    engine, report = make_engine(tmp_path / "store"), IngestReport()
    for number in range(3):
        assert ingest_documents(engine, [document(str(number), f"boat {number}")], report=report) is report
    assert (report.added, report.chunks, report.encoded) == (3, 3, 3)


@pytest.mark.parametrize("jobs", [1, 2])
def test_of_two_documents_with_one_source_the_later_stays(tmp_path: Path, jobs: int) -> None:
    engine = make_engine(tmp_path / "store")
    items = [document("a", "first"), document("a", "second"), document("a", "second")]
    report = ingest_documents(engine, items, IngestOptions(jobs=jobs))
    assert (report.added, report.updated, report.skipped, report.chunks) == (1, 1, 1, 1)
    assert [passage.text.strip() for passage in engine.index.passages()] == ["second"]


def test_tokens_are_counted(tmp_path: Path) -> None:
    engine, told = make_engine(tmp_path / "store"), []
    corpus = write_corpus(tmp_path / "docs", 3)
    report = ingest(engine, [corpus], None, lambda *step: told.append(step))
    assert report.tokens == sum(len(passage.token_ids) for passage in engine.index.passages())
    assert report.encoded_tokens == report.tokens
    assert report.tokens_per_second > 0
    assert told[2] == ("read", 3, 0)
    assert told[-1] == ("encode", report.tokens, report.tokens)
    again = ingest(engine, [corpus])
    assert (again.tokens, again.encoded_tokens, again.tokens_per_second) == (report.tokens, 0, 0.0)


def test_prune_never_takes_what_a_program_or_standard_input_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, corpus = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 2)
    monkeypatch.chdir(corpus)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b'{"id": 1, "text": "a pier"}\n'))))
    ingest_documents(engine, [document("handed over", "a boat")])
    ingest(engine, [Path("-"), corpus])
    report = ingest(engine, [corpus], IngestOptions(prune=True))
    assert report.deleted == 0
    assert {"handed over", "-#1"} < set(engine.index.sources())
    notes = [engine.index.document(source) for source in engine.index.sources()]
    assert [is_from_path(record.options) for record in notes if record] == [False, True, False, True]


def test_a_document_that_cannot_be_cut_keeps_its_old_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path / "store")
    ingest_documents(engine, [document("a", "good words")])

    def refuse(*_: object) -> None:
        raise ValueError("chunk_tokens is too small")

    monkeypatch.setattr("epic_rag.ingestion.workers.chunk_document", refuse)
    report = ingest_documents(engine, [document("a", "other words"), document("b", "more")])
    assert [error.source for error in report.errors] == ["a", "b"]
    assert (report.chunks, engine.index.num_passages) == (0, 1)
