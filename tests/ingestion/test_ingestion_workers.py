import multiprocessing
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import docx
import pytest
from corpus import make_engine, write_corpus
from tiny_models import make_tiny

from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions, ingest
from epic_rag.ingestion.workers import WorkerError, Workers
from epic_rag.loading import LoadedDocument, load_paths, make_document


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", 30)
    (corpus / "rows.jsonl").write_text('{"id": "a", "text": "the vault"}\nbad\n{"id": "b", "text": "the pier"}\n')
    (corpus / "bad.pdf").write_text("no pdf")
    office = docx.Document()
    office.add_paragraph("words of an office")
    office.save(corpus / "file.docx")
    passages, reports = [], []
    for jobs in (1, 3):
        engine = make_engine(tmp_path / f"store-{jobs}")
        report = ingest(engine, [corpus], IngestOptions(jobs=jobs))
        passages.append(list(engine.index.passages()))
        report.seconds = report.tokens_per_second = 0.0
        reports.append(report.to_dict())
    assert len(passages[0]) >= 33
    assert passages[0] == passages[1]
    assert reports[0] == reports[1]


def test_what_is_unchanged_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, corpus = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 3)
    ingest(engine, [corpus])
    monkeypatch.setattr(Workers, "_started", lambda _self: pytest.fail("a process was started"))
    assert ingest(engine, [corpus], IngestOptions(jobs=4)).skipped == 3


def test_processes_end_and_the_handler_of_ctrl_c_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    documents = [make_document(str(number), "", "words") for number in range(20)]
    with Workers(2, make_tiny("llama").tokenizer, 64) as workers:
        cuts = workers.cut(iter(documents))
        assert next(cuts).document == documents[0]
        assert signal.getsignal(signal.SIGINT) is before
        assert [cut.document for cut in cuts] == documents[1:]
    assert multiprocessing.active_children() == []


def test_with_one_job_a_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", 3)
    with Workers(1, make_tiny("llama").tokenizer, 64) as workers:
        items = load_paths([corpus], read=workers.read)
        assert isinstance(next(items), LoadedDocument)
        for path in corpus.iterdir():
            path.write_text("changed")
        assert [item.text for item in items if isinstance(item, LoadedDocument)] == ["changed", "changed"]


def test_a_process_that_died_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise BrokenProcessPool("gone")

    monkeypatch.setattr("epic_rag.ingestion.workers._cut", lambda *_: broken())
    with Workers(1, make_tiny("llama").tokenizer, 64) as workers, pytest.raises(WorkerError, match="fewer --jobs"):
        list(workers.cut([make_document("a", "", "words")]))


@pytest.mark.parametrize("jobs", [0, 1000])
def test_a_number_of_jobs_that_cannot_be_is_refused(jobs: int) -> None:
    with pytest.raises(ConfigError, match="jobs must be between 1 and 256"):
        IngestOptions(jobs=jobs)
