"""What the index notes beside a document: how it was cut, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

_ORIGIN = "origin"
_HANDED_OVER = "documents"


@dataclass(frozen=True, slots=True)
class Origin:
    """One document's note.

    Attributes:
        chunk_tokens: largest chunk it was cut into; 0 where the note does not say.
        handed_over: whether a program or standard input gave it, so that there is no file to look for.
        folder: absolute folder that its source is relative to; None for a source that is absolute or no file, and in
            notes of earlier releases.
    """

    chunk_tokens: int
    handed_over: bool = False
    folder: str | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a note. A text that is none counts as handed over, so that nothing unknown is pruned."""
        try:
            noted = json.loads(text)
        except (ValueError, RecursionError):
            noted = None
        if not isinstance(noted, Mapping):
            return cls(0, handed_over=True)
        chunk_tokens, folder = noted.get("chunk_tokens"), noted.get("folder")
        return cls(
            chunk_tokens if isinstance(chunk_tokens, int) else 0,
            noted.get(_ORIGIN) == _HANDED_OVER,
            folder if isinstance(folder, str) else None,
        )

    def to_json(self) -> str:
        """As the index keeps it."""
        noted: dict[str, int | str] = {"chunk_tokens": self.chunk_tokens}
        if self.handed_over:
            noted[_ORIGIN] = _HANDED_OVER
        if self.folder is not None:
            noted["folder"] = self.folder
        return json.dumps(noted)

    def same_cut(self, other: Origin) -> bool:
        """Whether the two differ in the folder at most."""
        return replace(self, folder=None) == replace(other, folder=None)
