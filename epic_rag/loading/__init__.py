"""Files to documents, lazily and in a fixed order; what cannot be read is named with its reason, never raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from epic_rag.loading.document import LoadedDocument, Section, SkippedSource, SkipSourceError, make_document
from epic_rag.loading.registry import READERS, reader_for
from epic_rag.loading.walk import Walk, reason_for, source_name

__all__ = ["READERS", "LoadedDocument", "PathLoader", "Section", "SkippedSource", "load_paths", "make_document"]


class PathLoader(Iterator[LoadedDocument | SkippedSource]):
    """What `load_paths` returns: an iterator that also counts what it passed over."""

    def __init__(self, paths: Sequence[Path], patterns: Sequence[str]) -> None:
        self._walk = Walk(patterns)
        self._items = self._load(paths)

    @property
    def num_ignored(self) -> int:
        """Hidden entries, unknown suffixes and names outside the patterns, passed over so far."""
        return self._walk.num_ignored

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoadedDocument | SkippedSource:
        return next(self._items)

    def _load(self, paths: Sequence[Path]) -> Iterator[LoadedDocument | SkippedSource]:
        seen: set[str] = set()
        for found in self._walk.files(paths):
            if isinstance(found, SkippedSource):
                yield found
                continue
            source = source_name(found)
            if source not in seen:  # named twice, or named beside its folder
                seen.add(source)
                yield from _read(found, source)


def load_paths(paths: Sequence[Path], *, patterns: Sequence[str] = ()) -> PathLoader:
    """Read the files under some paths, one file in memory at a time.

    Args:
        paths: Files and folders. Folders are walked in the order of names; hidden entries and files of unknown suffix
            in them are passed over and counted. A file named here is read even when it is hidden.
        patterns: Shell patterns such as `*.md`, one of which the name of a file found in a folder must match; none
            means every known suffix.

    Returns:
        Iterator over documents and skipped sources, with `num_ignored`.
    """
    return PathLoader(paths, patterns)


def _read(path: Path, source: str) -> Iterator[LoadedDocument | SkippedSource]:
    reader = reader_for(path)
    if reader is None:
        return
    try:
        yield from reader(path, source)
    except SkipSourceError as error:
        yield SkippedSource(source, str(error))
    except OSError as error:
        yield SkippedSource(source, reason_for(error))
