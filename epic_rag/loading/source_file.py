"""One file that was found, and its reading; small enough to be sent to another process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import cast

from epic_rag.loading.document import LoadedDocument, SkippedSource, SkipSourceError
from epic_rag.loading.json_ import load_jsonl_stream
from epic_rag.loading.registry import SLOW_SUFFIXES, reader_for
from epic_rag.loading.walk import STDIN, reason_for


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: where it is; `-` is standard input.
        source: its name.
        reason: why it was skipped already; empty when it was not.
    """

    path: Path
    source: str
    reason: str = ""

    def is_slow(self) -> bool:
        """Whether reading it takes long enough to be worth another process."""
        return not self.reason and self.path.suffix.lower() in SLOW_SUFFIXES

    def read(self) -> Iterator[LoadedDocument | SkippedSource]:
        """Its documents; what cannot be read is named, never raised."""
        if self.reason:
            yield SkippedSource(self.source, self.reason)
            return
        try:
            yield from self._documents()
        except SkipSourceError as error:
            yield SkippedSource(self.source, str(error))
        except OSError as error:
            yield SkippedSource(self.source, reason_for(error))
        except Exception as error:  # noqa: BLE001 - one file that trips its reader must not end the whole ingest
            yield SkippedSource(self.source, f"cannot be read: {type(error).__name__}: {error}")

    def _documents(self) -> Iterator[LoadedDocument | SkippedSource]:
        if self.source == STDIN:
            if sys.stdin is None:
                raise SkipSourceError("standard input is closed")
            stream = cast("BufferedReader", sys.stdin.buffer)
            yield from load_jsonl_stream(stream, self.source, is_pipe=True)
        elif (reader := reader_for(self.path)) is not None:
            yield from reader(self.path, self.source)
