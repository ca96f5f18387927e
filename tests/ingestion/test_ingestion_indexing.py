import io
import sys
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.config import DEFAULT_CHUNK_TOKENS
from epic_rag.engine import Engine
from epic_rag.ingest import IngestOptions, ingest, ingest_documents
from epic_rag.ingestion.origin import Origin
from epic_rag.loading import LoadedDocument, SkippedSource, make_document
from epic_rag.retrievers.index import PassageIndex
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
    assert [Origin.of(record.options).handed_over for record in notes if record] == [True, False, True, False]


def test_a_document_that_cannot_be_cut_keeps_its_old_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path / "store")
    ingest_documents(engine, [document("a", "good words")])

    def refuse(*_: object) -> None:
        raise ValueError("chunk_tokens is too small")

    monkeypatch.setattr("epic_rag.ingestion.workers.chunk_document", refuse)
    report = ingest_documents(engine, [document("a", "other words"), document("b", "more")])
    assert [error.source for error in report.errors] == ["a", "b"]
    assert (report.chunks, engine.index.num_passages) == (0, 1)


def note(engine: Engine, source: str) -> Origin:
    record = engine.index.document(source)
    assert record is not None
    return Origin.of(record.options)


def test_a_file_met_from_another_folder_is_unchanged_and_noted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, here, there = make_engine(tmp_path / "store"), tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "a.md").write_text("a boat")
    monkeypatch.chdir(here)
    ingest(engine, [Path("a.md"), there / "a.md"])
    assert note(engine, "a.md") == Origin(DEFAULT_CHUNK_TOKENS, folder=str(here))
    assert note(engine, str(there / "a.md")) == Origin(DEFAULT_CHUNK_TOKENS)
    state = engine.index.state
    monkeypatch.chdir(there)
    tried = ingest(engine, [Path("a.md")], IngestOptions(dry_run=True))
    assert (tried.skipped, tried.changes, note(engine, "a.md").folder) == (1, [], str(here))
    again = ingest(engine, [Path("a.md")])
    assert (again.skipped, again.updated, again.added) == (1, 0, 0)
    assert (note(engine, "a.md").folder, engine.index.state) == (str(there), state)
    assert ingest(engine, [Path("a.md")], IngestOptions(chunk_tokens=64)).updated == 1


def test_the_note_of_an_earlier_release_means_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path / "store")
    monkeypatch.chdir(write_corpus(tmp_path / "docs", 1))
    ingest(engine, [Path()])
    (source,) = engine.index.sources()
    engine.index.set_options(source, f'{{"chunk_tokens": {DEFAULT_CHUNK_TOKENS}}}')
    assert (ingest(engine, [Path()]).skipped, note(engine, source).folder) == (1, str(tmp_path / "docs"))


def test_unchanged_files_need_no_index_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, docs = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 1)
    monkeypatch.chdir(docs)
    ingest(engine, [Path()])
    (source,) = engine.index.sources()
    (tmp_path / source).write_bytes((docs / source).read_bytes())
    engine.close()
    engine = make_engine(tmp_path / "store")
    engine.index = PassageIndex(tmp_path / "store" / "index", read_only=True)
    monkeypatch.chdir(tmp_path)
    assert ingest(engine, [Path(source)]).skipped == 1
    assert note(engine, source).folder == str(docs)
