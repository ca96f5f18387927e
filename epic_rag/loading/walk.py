"""Which files lie under the paths a user names: in a fixed order, each folder once, hidden ones left alone."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from epic_rag.loading.document import SkippedSource
from epic_rag.loading.pattern import PathPattern
from epic_rag.loading.registry import READERS, reader_for

STDIN = "-"
"""The path that stands for standard input."""

_BYTE = re.compile(rb"\\x([89a-f][0-9a-f])")
_NOT_REGULAR_REASON = "not a regular file"


@dataclass(slots=True)
class Walk:
    """One walk over files and folders.

    Attributes:
        patterns: Shell patterns, one of which a file's name must match; none means every file of a known suffix.
        num_ignored: Files and folders passed over without a word so far: hidden ones, unknown suffixes, names that
            match no pattern.
    """

    patterns: Sequence[str] = ()
    num_ignored: int = 0
    _seen_folders: set[tuple[int, int]] = field(default_factory=set)

    def files(self, paths: Sequence[Path]) -> Iterator[Path | SkippedSource]:
        """The files to read, in the order of `paths` and sorted by name beneath each.

        A path named by the user is never ignored: it is yielded, or skipped with a reason. One that is not there and
        holds `*`, `?` or `[` is a pattern; `-` is yielded as it is. What two paths name is yielded twice.
        """
        for path in paths:
            self._seen_folders.clear()
            if str(path) == STDIN:
                yield path
                continue
            try:
                mode = path.stat().st_mode
            except OSError as error:
                pattern = PathPattern.of(path)
                if pattern is not None:
                    yield from self._pattern(path, pattern)
                    continue
                yield SkippedSource(source_name(path), reason_for(error))
                continue
            except ValueError as error:  # a NUL character in the name
                yield SkippedSource(path.as_posix().replace("\0", "\ufffd"), f"not a path: {error}")
                continue
            if stat.S_ISDIR(mode):
                yield from self._folder(path)
            elif not stat.S_ISREG(mode):
                yield SkippedSource(source_name(path), _NOT_REGULAR_REASON)
            elif reader_for(path) is None:
                yield SkippedSource(source_name(path), _unknown_suffix(path))
            else:
                yield path

    def _pattern(self, path: Path, pattern: PathPattern) -> Iterator[Path | SkippedSource]:
        """What a pattern names; a pattern that names nothing is skipped with a reason."""
        found_any = False
        for found in self._folder(pattern.root, pattern):
            found_any = True
            yield found
        if not found_any:
            yield SkippedSource(source_name(path), f"no such file, and no file of a known suffix ({_known()}) matches")

    def _folder(self, folder: Path, pattern: PathPattern | None = None) -> Iterator[Path | SkippedSource]:
        """Walk one folder without recursion, entries sorted by name, a folder's content in its place."""
        stack = self._entries(folder)
        while stack:
            found = stack.pop()
            if isinstance(found, SkippedSource):
                yield found
                continue
            if found.name.startswith("."):
                self.num_ignored += 1
                continue
            mode = _mode(found)
            if stat.S_ISDIR(mode):
                if pattern is None or pattern.leads_to(found):
                    stack.extend(self._entries(found))
            elif pattern is not None and not pattern.covers(found):
                continue
            elif reader_for(found) is None or not self._matches(found.name):
                self.num_ignored += 1
            elif mode and not stat.S_ISREG(mode):
                yield SkippedSource(source_name(found), _NOT_REGULAR_REASON)
            else:
                yield found

    def _entries(self, folder: Path) -> list[Path | SkippedSource]:
        """What a folder holds, last name first; nothing when it was visited before, as by a symbolic link."""
        try:
            status = folder.stat()
            identity = (status.st_dev, status.st_ino)
            if identity in self._seen_folders:
                return []
            self._seen_folders.add(identity)
            return [folder / name for name in sorted(os.listdir(folder), reverse=True)]  # noqa: PTH208  str sorts faster
        except OSError as error:
            return [SkippedSource(source_name(folder), reason_for(error))]

    def _matches(self, name: str) -> bool:
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)


def _mode(path: Path) -> int:
    """Kind and rights of a file; 0 when the file system does not tell, so that reading it will say why."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def source_name(path: Path) -> str:
    r"""A path as a source: posix, as given, relative to the current folder when it lies beneath it.

    Bytes of a file name that are not UTF-8 are written as `\xNN`, so that the name can be stored and printed.
    """
    if path.is_absolute():
        here = Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else path
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def source_path(source: str) -> Path:
    r"""The path of a source: undoes what `source_name` does to names that are not UTF-8, `\xNN` for a byte."""
    return Path(os.fsdecode(_BYTE.sub(lambda found: bytes([int(found[1], 16)]), source.encode())))


def reason_for(error: OSError) -> str:
    """Why the file system did not give us a file."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    if isinstance(error, PermissionError):
        return "permission denied: give this user the right to read it"
    return f"cannot be read: {error.strerror or error}"


def _unknown_suffix(path: Path) -> str:
    suffix = f"unknown suffix {path.suffix}" if path.suffix else "no suffix"
    return f"{suffix}; known are {_known()}"


def _known() -> str:
    return " ".join(READERS)
