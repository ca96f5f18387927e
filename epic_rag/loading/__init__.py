"""Files to documents, lazily and in a fixed order; what cannot be read is named with its reason, never raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from epic_rag.loading.document import LoadedDocument, Section, SkippedSource, make_document
from epic_rag.loading.pattern import PathPattern
from epic_rag.loading.registry import READERS
from epic_rag.loading.source_file import SourceFile
from epic_rag.loading.walk import STDIN, Walk, source_name

__all__ = [
    "READERS",
    "STDIN",
    "LoadedDocument",
    "PathLoader",
    "PathPattern",
    "Section",
    "SkippedSource",
    "SourceFile",
    "load_paths",
    "make_document",
]

Read = Callable[[Iterable[SourceFile]], Iterator[Iterable[LoadedDocument | SkippedSource]]]
"""Reads files in their order: `SourceFile.read` of each, perhaps several at once."""


class PathLoader(Iterator[LoadedDocument | SkippedSource]):
    """What `load_paths` returns: an iterator that also counts what it passed over."""

    def __init__(self, paths: Sequence[Path], patterns: Sequence[str], read: Read | None = None) -> None:
        self._walk = Walk(patterns)
        self._read = read or _one_by_one
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
        for items in self._read(self._files(paths)):
            yield from items

    def _files(self, paths: Sequence[Path]) -> Iterator[SourceFile]:
        seen: set[str] = set()
        for found in self._walk.files(paths):
            if isinstance(found, SkippedSource):
                yield SourceFile(Path(), found.source, found.reason)
                continue
            source = source_name(found)
            if source not in seen:  # named twice, or named beside its folder
                seen.add(source)
                yield SourceFile(found, source)


def _one_by_one(files: Iterable[SourceFile]) -> Iterator[Iterator[LoadedDocument | SkippedSource]]:
    return (file.read() for file in files)


def load_paths(paths: Sequence[Path], *, patterns: Sequence[str] = (), read: Read | None = None) -> PathLoader:
    """Read the files under some paths, one file in memory at a time.

    Args:
        paths: Files and folders. Folders are walked in the order of names; hidden entries and files of unknown suffix
            in them are passed over and counted. A file named here is read even when it is hidden. What is not there
            and holds `*`, `?` or `[` is a pattern (see `PathPattern`). `-` reads JSON Lines from standard input.
        patterns: Shell patterns such as `*.md`, one of which the name of a file found in a folder must match; none
            means every known suffix.
        read: How the files are read; None: one by one, here.

    Returns:
        Iterator over documents and skipped sources, with `num_ignored`.
    """
    return PathLoader(paths, patterns, read)
