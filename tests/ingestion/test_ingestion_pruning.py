import errno
import json
import os
import sys
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions, ingest, ingest_documents
from epic_rag.loading import make_document

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


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def names(engine: Engine) -> list[str]:
    return [Path(source).name for source in engine.index.sources()]


def records(**texts: object) -> str:
    return "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())


def test_a_source_is_looked_for_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    gone = write(docs / "gone.md", "a boat")
    write(docs / "a.md", "a pier")
    write(docs / "rows.jsonl", records(x="a mast", y="a sail"))
    write(tmp_path / "notes" / "b.md", "a quay")
    monkeypatch.chdir(tmp_path)
    ingest(engine, [Path("docs"), Path("notes")])
    gone.unlink()
    write(docs / "rows.jsonl", records(x="a mast"))
    monkeypatch.chdir(docs)
    report = ingest(engine, [Path()], PRUNE)
    assert (report.added, report.deleted, report.warnings) == (2, 2, [])
    assert list(engine.index.sources()) == ["a.md", "docs/a.md", "docs/rows.jsonl#x", "notes/b.md", "rows.jsonl#x"]


@pytest.mark.parametrize("absolute", [True, False])
def test_names_too_long_for_the_file_system_are_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    engine, docs, long = make_engine(tmp_path / "store"), tmp_path / "docs", "x" * 300
    monkeypatch.chdir(tmp_path)
    rows = write(docs / "rows.jsonl", records(**{long: "a boat", f"{long}#y": "a pier", "z": "a quay"}))
    ingest_documents(engine, [make_document(f"docs/{long}", "", "a mast")])
    folder = docs if absolute else Path("docs")
    ingest(engine, [folder])
    write(rows, records(**{long: "a boat", "z": "a quay"}))
    assert ingest(engine, [folder], PRUNE).deleted == 1
    rows.unlink()
    assert ingest(engine, [folder], PRUNE).deleted == 2
    assert list(engine.index.sources()) == [f"docs/{long}"]


def test_a_file_that_may_not_be_looked_at_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    write(docs / "locked" / "a.md", "a boat")
    write(docs / "locked" / "rows.jsonl", records(x="a mast"))
    write(docs / "b.md", "a pier")
    ingest(engine, [docs])
    real = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if "locked" in self.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert (ingest(engine, [docs], PRUNE).deleted, engine.index.num_documents) == (0, 3)


@pytest.mark.parametrize("bad", ['{"id": "b", "text": 7}\n', '{"id": "b", "te'])
def test_no_record_is_gone_while_its_file_has_an_error(tmp_path: Path, bad: str) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    rows = write(docs / "rows.jsonl", records(a="a boat", b="a pier", c="a quay"))
    write(docs / "other.jsonl", records(a="a mast", b="a sail"))
    ingest(engine, [docs])
    write(rows, records(a="a boat") + bad)
    write(docs / "other.jsonl", records(a="a mast"))
    report = ingest(engine, [docs], PRUNE)
    assert (len(report.errors), report.deleted) == (1, 1)
    assert names(engine) == ["other.jsonl#a", "rows.jsonl#a", "rows.jsonl#b", "rows.jsonl#c"]
    write(rows, records(a="a boat", b="a pier"))
    assert ingest(engine, [docs], PRUNE).deleted == 1


def test_a_record_that_cannot_be_cut_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    rows = write(docs / "rows.jsonl", records(a="a boat", b="a pier"))
    ingest(engine, [docs])
    write(rows, records(a="a boat", b="a long pier"))

    def refuse(*_: object) -> None:
        raise ValueError("chunk_tokens is too small")

    monkeypatch.setattr("epic_rag.ingestion.workers.chunk_document", refuse)
    report = ingest(engine, [docs], PRUNE)
    assert (len(report.errors), report.deleted) == (1, 0)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
@pytest.mark.parametrize("text", ["", " \n\n"])
def test_the_records_of_an_emptied_file_are_gone(tmp_path: Path, name: str, text: str) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    pair = '[{"text": "a boat"}, {"text": "a pier"}]' if name.endswith("json") else records(a="a boat", b="a pier")
    write(docs / name, pair)
    ingest(engine, [docs])
    assert engine.index.num_documents == 2
    write(docs / name, text)
    assert (ingest(engine, [docs], PRUNE).deleted, names(engine)) == (2, [])


def test_an_emptied_record_is_gone_and_keeps_no_other(tmp_path: Path) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    rows = write(docs / "rows.jsonl", records(a="a boat", b="a pier", c="a quay"))
    ingest(engine, [docs])
    write(rows, records(a="", b="a pier"))
    assert (ingest(engine, [docs], PRUNE).deleted, names(engine)) == (2, ["rows.jsonl#b"])


def test_a_file_that_became_a_list_of_records_is_gone_as_one_document(tmp_path: Path) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    file = write(docs / "a.json", '{"text": "a boat"}')
    ingest(engine, [docs])
    write(file, '[{"text": "a pier"}]')
    assert (ingest(engine, [docs], PRUNE).deleted, names(engine)) == (1, ["a.json#1"])


@pytest.mark.parametrize("named", ["docs", "docs/**/*.md", "docs/ext", "ext"])
def test_what_a_linked_folder_held_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    engine, docs = make_engine(tmp_path / "store"), tmp_path / "docs"
    gone = write(tmp_path / "ext" / "gone.md", "a boat")
    write(tmp_path / "ext" / "a.md", "a pier")
    docs.mkdir()
    (docs / "ext").symlink_to(tmp_path / "ext")
    monkeypatch.chdir(tmp_path)
    ingest(engine, [Path("docs")])
    gone.unlink()
    assert ingest(engine, [Path(named)], PRUNE).deleted == 1
    assert "docs/ext/gone.md" not in engine.index.sources()


@pytest.mark.parametrize("named", ["share", "share/*.md", "share/**"])
def test_a_folder_that_is_not_there_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    engine, docs = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 2)
    write(tmp_path / "share" / "a.md", "a boat")
    monkeypatch.chdir(tmp_path)
    ingest(engine, [Path("share"), docs])
    (tmp_path / "share").rename(tmp_path / "unmounted")
    next(docs.iterdir()).unlink()
    report = ingest(engine, [], PRUNE, prune_under=[Path(named), docs, Path(named)])
    assert (report.deleted, report.warnings) == (1, ["share is not there: nothing beneath it was pruned"])
    assert "share/a.md" in engine.index.sources()


@pytest.mark.parametrize("name", ["a.md", "rows.jsonl"])
def test_a_file_that_was_named_and_is_not_there_is_gone(tmp_path: Path, name: str) -> None:
    engine = make_engine(tmp_path / "store")
    file = write(tmp_path / "docs" / name, records(a="a boat"))
    ingest(engine, [file])
    file.unlink()
    report = ingest(engine, [file], PRUNE)
    assert (report.deleted, report.warnings, engine.index.num_documents) == (1, [], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
def test_a_file_name_that_is_not_utf_8_is_found_again(tmp_path: Path) -> None:
    engine, docs = make_engine(tmp_path / "store"), write_corpus(tmp_path / "docs", 1)
    odd = Path(os.fsdecode(os.fsencode(docs) + b"/bad\xff#1.txt"))
    odd.write_text("a boat")
    assert ingest(engine, [docs]).added == 2
    assert ingest(engine, [], PRUNE, prune_under=[docs]).deleted == 0
    odd.unlink()
    assert ingest(engine, [], PRUNE, prune_under=[docs]).deleted == 1
