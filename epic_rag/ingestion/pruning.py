"""Stage prune: which indexed documents are gone from the paths of this ingest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from epic_rag.ingestion.indexing import is_from_path
from epic_rag.loading import STDIN, PathPattern
from epic_rag.loading.document import EMPTY
from epic_rag.retrievers.index import PassageIndex
from epic_rag.schema import IngestReport


def gone(index: PassageIndex, paths: Sequence[Path], seen: Collection[str], report: IngestReport) -> Iterator[str]:
    """Indexed documents under one of the paths that are gone: the file, a record of it, or all its text.

    Documents that were handed over by a program or on standard input have no file and are never gone.

    Args:
        index: what is known.
        paths: files, folders and patterns of this ingest.
        seen: documents that were read now.
        report: of this ingest: its errors tell which files are empty now.
    """
    covers = [_cover(path) for path in paths if str(path) != STDIN]
    emptied = {error.source for error in report.errors if error.reason == EMPTY}
    read_files = {_file(source) for source in seen}
    for source in list(index.sources()):
        if source in seen or source.startswith(f"{STDIN}#"):
            continue
        file = _file(source)
        if not any(cover.covers(file.resolve()) for cover in covers):
            continue
        record_is_gone = str(file) != source and file in read_files
        if (not file.exists() or record_is_gone or source in emptied) and _has_file(index, source):
            yield source


class _Root:
    """A file or folder that was named."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def covers(self, file: Path) -> bool:
        return file.is_relative_to(self._path)


def _cover(path: Path) -> _Root | PathPattern:
    return PathPattern.of(path.absolute()) or _Root(path)


def _has_file(index: PassageIndex, source: str) -> bool:
    record = index.document(source)
    return record is not None and is_from_path(record.options)


def _file(source: str) -> Path:
    """The file of a source; a record is named `file#record`, and `#` may stand in either part."""
    name = source
    while "#" in name and not Path(name).exists():
        name = name.rpartition("#")[0]
    return Path(name)
