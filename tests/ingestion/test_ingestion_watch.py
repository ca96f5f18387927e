"""The watch is driven look by look: `pause` changes the files and `stop` ends it; nothing here waits."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus

from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions
from epic_rag.ingestion.watch import Watch
from epic_rag.schema import IngestReport


def watched(tmp_path: Path, steps: list[Callable[[], object]], *, prune: bool = False) -> list[IngestReport]:
    """The reports of a watch over `docs`, with one of `steps` in each pause."""
    left = list(steps)
    engine = make_engine(tmp_path / "store")
    watch = Watch(
        engine, [tmp_path / "docs"], IngestOptions(prune=prune),
        pause=lambda: left.pop(0)(), stop=lambda: not left,
    )  # fmt: skip
    reports = list(watch.reports())
    engine.close()
    return reports


def nothing() -> None:
    """Between two looks in which nothing happens."""


def test_only_what_changed_is_read_again_once_it_is_quiet(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 4)
    file = docs / "bakery-1.txt"
    steps = [nothing, lambda: file.write_text("half"), lambda: file.write_text("half and half"), nothing, nothing]
    first, second = watched(tmp_path, steps)
    assert (first.added, first.skipped) == (4, 0)
    assert (second.updated, second.skipped, second.chunks) == (1, 0, 1)


def test_new_files_come_and_gone_ones_go_only_with_prune(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 3)
    new = docs / "deep" / "new.md"

    def come() -> None:
        new.parent.mkdir()
        new.write_text("# New\n\nwords")

    steps = [come, nothing, lambda: new.unlink(), nothing]
    _, added = watched(tmp_path, steps)
    assert (added.added, added.chunks) == (1, 1)
    new.parent.rmdir()
    first, added, deleted = watched(tmp_path, steps, prune=True)
    assert (first.deleted, added.added, deleted.deleted) == (1, 1, 1), "the first watch had left it in the index"


def test_a_touch_is_read_again_and_encodes_nothing(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 2)
    _, second = watched(tmp_path, [lambda: os.utime(docs / "bakery-1.txt", (1, 1)), nothing])
    assert (second.skipped, second.encoded) == (1, 0)


def test_what_changes_while_an_ingest_runs_is_seen(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 2)
    engine, left = make_engine(tmp_path / "store"), [nothing, nothing, nothing]
    watch = Watch(engine, [docs], IngestOptions(), pause=lambda: left.pop()(), stop=lambda: not left)
    reports = watch.reports()
    next(reports)
    (docs / "bakery-1.txt").write_text("other words")
    assert next(reports).updated == 1
    assert list(reports) == []


def test_watching_needs_files_and_no_dry_run(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "store")
    with pytest.raises(ConfigError, match="standard input"):
        Watch(engine, [Path("-")], IngestOptions())
    with pytest.raises(ConfigError, match="dry run"):
        Watch(engine, [tmp_path], IngestOptions(dry_run=True))


def test_a_file_whose_rights_changed_is_tried_again(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 2)
    file = docs / "bakery-1.txt"
    first, second = watched(tmp_path, [lambda: file.chmod(0o600), nothing, nothing])
    assert (first.added, second.skipped, second.encoded) == (2, 1, 0)


def test_a_file_that_never_rests_keeps_no_other_waiting(tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "docs", 2)
    log = docs / "log.txt"
    log.write_text("x")

    def grow() -> None:
        log.write_text(log.read_text() + "x")

    def finish() -> None:
        grow()
        (docs / "new.txt").write_text("a new boat")

    first, second = watched(tmp_path, [grow, finish, grow, grow, grow])
    assert (first.added, second.added, second.updated) == (3, 1, 0)
