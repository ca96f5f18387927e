"""Stage prune: which indexed documents are gone from the paths of this ingest."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from epic_rag.ingestion.origin import Origin
from epic_rag.loading import STDIN, PathPattern
from epic_rag.loading.document import EMPTY
from epic_rag.loading.pattern import is_there
from epic_rag.loading.walk import source_name, source_path
from epic_rag.retrievers.index import PassageIndex
from epic_rag.schema import IngestReport, SourceError

_EMPTY = re.compile(rf"(line \d+: )?{EMPTY}")


def gone(index: PassageIndex, paths: Sequence[Path], seen: Collection[str], report: IngestReport) -> Iterator[str]:
    """Indexed documents under one of the paths that are gone: the file, a record of it, or all its text.

    Documents that were handed over by a program or on standard input have no file and are never gone; nor is what lay
    in a folder that is not there, for a share that is not mounted looks the same.

    Args:
        index: what is known.
        paths: files, folders and patterns of this ingest.
        seen: documents that were read now.
        report: of this ingest: its errors tell which files are empty now, and which were read in part; each folder
            that is not there becomes a warning.
    """
    reading = _Reading(seen, report.errors)
    lost = [(source, place.file) for source, place in _unseen(index, seen) if reading.misses(place)]
    covers = _covers(paths, {name for _, file in lost for name in _names(file)}, report)
    for source, file in lost:
        if any(cover.covers(name) for cover in covers for name in _names(file)):
            yield source


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a document was read: its file, and the record in it; empty for a whole file."""

    file: Path
    record: str

    @classmethod
    def of(cls, source: str, folder: Path) -> Self:
        """The place of a source; a record is named `file#record`, and `#` may stand in either part."""
        name = source
        while "#" in name and not is_there(_file(folder, name)):
            name = name.rpartition("#")[0]
        return cls(_file(folder, name), source[len(name) :])


def _file(folder: Path, name: str) -> Path:
    """The file of a name, which may have bytes that are not UTF-8."""
    file, odd = folder / name, folder / source_path(name)
    return odd if not is_there(file) and is_there(odd) else file


class _Reading:
    """What this ingest read, to tell what is missing now."""

    def __init__(self, seen: Iterable[str], errors: Iterable[SourceError]) -> None:
        here, failed = Path.cwd(), set[Path]()
        self._found = {_Place.of(source, here) for source in seen if "#" in source}
        self._empty = set[_Place]()
        for error in errors:
            place = _Place.of(error.source, here)
            if _EMPTY.fullmatch(error.reason):
                self._empty.add(place)
            else:
                failed.add(place.file)
        self._read_whole = {place.file for place in self._found | self._empty} - failed

    def misses(self, place: _Place) -> bool:
        """Whether nothing is left in a place; no record is missed of a file that was read in part."""
        if place in self._empty or not is_there(place.file):
            return True
        return place.file in self._read_whole and place not in self._found


def _unseen(index: PassageIndex, seen: Collection[str]) -> Iterator[tuple[str, _Place]]:
    """Documents from files that were not read now."""
    here = Path.cwd()
    for source in index.sources():
        if source in seen or source.startswith(f"{STDIN}#"):
            continue
        record = index.document(source)
        if record is None:  # another process removed it
            continue
        origin = Origin.of(record.options)
        if not origin.handed_over:
            yield source, _Place.of(source, here / (origin.folder or ""))


def _covers(paths: Iterable[Path], lost: Set[Path], report: IngestReport) -> list[PathPattern]:
    """What the paths name; a folder that is not there, and was no file that is lost, is passed over with a warning."""
    covers: list[PathPattern] = []
    for path in paths:
        if str(path) == STDIN or "\0" in str(path):  # neither can be a folder
            continue
        pattern = PathPattern.of(path) or PathPattern(path, ())
        names, root = _names(pattern.root), source_name(pattern.root)
        if is_there(pattern.root) or not lost.isdisjoint(names):
            covers += [PathPattern(name, pattern.parts) for name in names]
        elif (warning := f"{root} is not there: nothing beneath it was pruned") not in report.warnings:
            report.warnings.append(warning)
    return covers


def _names(path: Path) -> set[Path]:
    """A path as it was spelt and with its links followed: what a linked folder holds lies under either."""
    return {Path(os.path.abspath(path)), Path(os.path.realpath(path))}  # noqa: PTH100  resolve() raises for loops
