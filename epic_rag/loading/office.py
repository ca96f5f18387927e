"""What the readers of office files share: opening them safely, and their tables."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epic_rag.loading.document import EMPTY, SkipSourceError, clean_text

MISSING_REASON = "reading {kind} needs an extra: pip install 'epic-rag[office]'"
_MAX_UNPACKED_BYTES = 512 * 1024 * 1024
_OLE_MARK = b"\xd0\xcf\x11\xe0"  # the container of old Office files, and of new ones with a password


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Check an office file, and turn whatever the library raises on it into a reason.

    Raises:
        OSError: The file cannot be read.
        SkipSourceError: It is empty, encrypted, no such file, unpacks to more than 512 MB, or is damaged.
    """
    _check(path, kind)
    try:
        yield
    except (SkipSourceError, OSError):
        raise
    except Exception as error:  # a damaged file makes the libraries raise whatever comes to hand
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SkipSourceError(f"broken {kind}: {reason}") from error


def _check(path: Path, kind: str) -> None:
    with path.open("rb") as file:
        head = file.read(len(_OLE_MARK))
    if not head:
        raise SkipSourceError(EMPTY)
    if head == _OLE_MARK:
        raise SkipSourceError(f"encrypted, or saved by an old Office: save it as {kind} without a password")
    try:
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise SkipSourceError(f"broken {kind}: {error}") from error
    if num_bytes > _MAX_UNPACKED_BYTES:
        raise SkipSourceError(f"unpacks to {num_bytes / 1e6:.0f} MB, more than {_MAX_UNPACKED_BYTES / 1e6:.0f}")


def table_text(rows: Iterable[Iterable[str]]) -> str:
    """A table as lines of cells with `|` between them; a cell is one line, empty rows are left out."""
    lines = []
    for row in rows:
        cells = [" ".join(clean_text(cell).split()) for cell in row]
        if any(cells):
            lines.append(" | ".join(cells))
    return "\n".join(lines)


class Blocks:
    """A text as it grows by blocks, a blank line between two.

    Attributes:
        num_chars: length so far; where a block that is added next begins, but for the blank line.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.num_chars = 0

    def add(self, text: str) -> int | None:
        """Add a block; returns the offset where it begins, None when it is blank and was left out."""
        text = clean_text(text).strip("\n")
        if not text.strip():
            return None
        start_char = self.num_chars + 2 if self._parts else 0
        self._parts.append(text)
        self.num_chars = start_char + len(text)
        return start_char

    @property
    def text(self) -> str:
        """All of it."""
        return "\n\n".join(self._parts)
