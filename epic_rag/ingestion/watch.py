"""Watch folders and ingest what changed in them, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.ingest import ingest
from epic_rag.ingestion.options import IngestOptions, Progress
from epic_rag.loading import STDIN
from epic_rag.loading.walk import Walk
from epic_rag.schema import IngestReport

POLL_SECONDS = 1.0

_Shown = Callable[[], AbstractContextManager[Progress | None]]
_Mark = tuple[int, int, int]  # size in bytes; times of change of the content and of the file's rights, in nanoseconds


@dataclass(frozen=True, slots=True)
class Watch:
    """One watch over files and folders, by size and time of change: that works on every file system.

    Attributes:
        engine: model, store and index.
        paths: files, folders and patterns.
        options: how; with `prune`, documents whose files went are removed.
        pause: waits between two looks.
        stop: whether to end; asked after every look. None: never, so that Ctrl-C ends it.
    """

    engine: Engine
    paths: Sequence[Path]
    options: IngestOptions
    pause: Callable[[], None] = lambda: time.sleep(POLL_SECONDS)
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        """Check what there is to watch.

        Raises:
            ConfigError: standard input, or a dry run.
        """
        if any(str(path) == STDIN for path in self.paths):
            raise ConfigError("watch needs files and folders: standard input ends, and cannot be read again")
        if self.options.dry_run:
            raise ConfigError("watch and dry run exclude each other: take one of the two")

    def reports(self, progress: _Shown = nullcontext) -> Iterator[IngestReport]:
        """The first ingest's report, then one for each time that something changed.

        A file's change counts when two looks after each other see the same of it: one that is still being written
        waits, and keeps no other waiting.

        Args:
            progress: opened for each ingest, and told how far it is.

        Raises:
            StoreWriteError: the store cannot be written; what was stored before stays.
        """
        before = self._look()
        done = dict(before)
        yield self._ingest(self.paths, progress)
        while not self.stop():
            self.pause()
            now = self._look()
            changed = {path: mark for path, mark in now.items() if before.get(path, ()) == mark != done.get(path, ())}
            gone = [path for path in done if path not in now and path not in before]
            if changed or (gone and self.options.prune):
                yield self._ingest(list(changed), progress)
            done.update(changed)
            for path in gone:
                del done[path]
            before = now

    def _ingest(self, paths: Sequence[Path], progress: _Shown) -> IngestReport:
        """Ingest what is new or changed; what went is looked for under all that is watched."""
        with progress() as tell:
            return ingest(self.engine, paths, self.options, tell, prune_under=self.paths)

    def _look(self) -> dict[Path, _Mark | None]:
        """Every file to read, in the order of reading, with its mark; None: not readable."""
        return {found: _mark(found) for found in Walk().files(self.paths) if isinstance(found, Path)}


def _mark(path: Path) -> _Mark | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
