"""Patterns such as `docs/**/*.md`, quoted so that the shell leaves them: which files they name."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

_ANY_DEPTH = "**"
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern in two halves.

    As in a shell, a pattern may name a folder, and then everything in it is meant. Hidden files are never found.

    Attributes:
        root: the folder before the first part with `*`, `?` or `[`.
        parts: that part and what follows; `**` stands for any number of folders.
    """

    root: Path
    parts: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The pattern that a path spells; None when it has no wildcard, or is the name of something that is there."""
        if not _MAGIC.search(str(path)) or is_there(path):
            return None
        first = next(place for place, part in enumerate(path.parts) if _MAGIC.search(part))
        return cls(Path(*path.parts[:first]), path.parts[first:])

    def covers(self, file: Path) -> bool:
        """Whether the pattern names a file or a folder above it."""
        if file.is_relative_to(self.root):
            return _covers(file.relative_to(self.root).parts, self.parts)
        root = self.root.resolve()
        return file.is_relative_to(root) and _covers(file.relative_to(root).parts, self.parts)

    def leads_to(self, folder: Path) -> bool:
        """Whether something in this folder beneath `root` may be named."""
        return _leads_to(folder.relative_to(self.root).parts, self.parts)


def is_there(path: Path) -> bool:
    """Whether something has this name; where the system does not let us look, it counts as there."""
    try:
        path.stat()
    except ValueError:  # a NUL character in the name
        return False
    except OSError as error:
        return error.errno not in _ABSENT
    return True


def _covers(names: Sequence[str], parts: Sequence[str]) -> bool:
    return len(parts) in _places(names, parts)


def _leads_to(names: Sequence[str], parts: Sequence[str]) -> bool:
    return bool(_places(names, parts))


def _places(names: Sequence[str], parts: Sequence[str]) -> set[int]:
    """How many parts may have been used up once all names are; all of them, where a folder above is named.

    All ways are followed at once, so that the time does not grow with the number of ways.
    """
    places = _with_empty_depths({0}, parts)
    for name in names:
        if len(parts) in places:
            break
        stay = {place for place in places if parts[place] == _ANY_DEPTH}
        go = {place + 1 for place in places - stay if fnmatchcase(name, parts[place])}
        places = _with_empty_depths(stay | go, parts)
    return places


def _with_empty_depths(places: set[int], parts: Sequence[str]) -> set[int]:
    """These places, and those behind each `**` that stands for no folder."""
    found = set(places)
    for place in range(len(parts)):
        if place in found and parts[place] == _ANY_DEPTH:
            found.add(place + 1)
    return found
