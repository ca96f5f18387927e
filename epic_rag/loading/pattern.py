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
    if not parts:
        return True
    if parts[0] == _ANY_DEPTH:
        return any(_covers(names[skip:], parts[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _covers(names[1:], parts[1:])


def _leads_to(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not names or not parts or parts[0] == _ANY_DEPTH:
        return True
    return fnmatchcase(names[0], parts[0]) and _leads_to(names[1:], parts[1:])
