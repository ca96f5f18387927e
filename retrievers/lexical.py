"""Search by words: BM25 over a `PassageIndex`, kept in step with its revision."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from epic_rag.retrievers.analysis import ANALYZER_VERSION, query_words
from epic_rag.retrievers.bm25 import Bm25
from epic_rag.retrievers.index import IndexState, PassageIndex
from epic_rag.retrievers.passage import Passage

_MANIFEST_NAME = "manifest.json"
_TEMPORARY = ".tmp-"
_STALE_SECONDS = 3600.0  # a temporary folder this old was left by a process that died
_MAX_BUILDS = 3


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Scores and the content of the index that they were built from."""

    state: IndexState
    scores: Bm25


class LexicalIndex:
    """BM25 search over the passages of an index; safe for threads.

    The scores are kept in `<folder>/lexical/<revision>/` and memory-mapped. Every search first asks the index for its
    state; when that has moved on, the scores are loaded or built anew, in memory alone where the folder may not be
    written.

    Args:
        index: The passages; a change made to it by any process is seen by the next search.
    """

    def __init__(self, index: PassageIndex) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._snapshot: _Snapshot | None = None

    def search(self, query: str, k: int) -> list[tuple[Passage, float]]:
        """The best passages for a question.

        Args:
            query: Text in any script; empty or without any known word, it finds nothing.
            k: How many at most.

        Returns:
            (passage, score) by falling score, equal scores by source and position; scores are above 0.
        """
        wanted = query_words(query)
        if not wanted or k < 1:
            return []
        scored = self._current().scores.top(wanted, k)
        found = {passage.id: passage for passage in self.index.get([name for name, _ in scored])}
        return [(found[name], score) for name, score in scored if name in found]  # one may have been deleted meanwhile

    def refresh(self) -> None:
        """Make the scores fit the index now; costs nothing when they do already."""
        self._current()

    def _current(self) -> _Snapshot:
        state = self.index.state
        snapshot = self._snapshot
        if snapshot is not None and snapshot.state == state:
            return snapshot
        with self._lock:  # one thread builds, the others wait for it
            state = self.index.state
            if self._snapshot is None or self._snapshot.state != state:
                self._snapshot = self._load(state) or self._build()
            return self._snapshot

    def _build(self) -> _Snapshot:
        """Build from a content that held still; after some tries from one that did not, to be built again next time."""
        for _ in range(_MAX_BUILDS):
            state = self.index.state
            snapshot = _Snapshot(state, Bm25.build(self.index.passages()))
            if self.index.state == state:
                self._keep(snapshot)
                break
        return snapshot

    @property
    def _folder(self) -> Path | None:
        return None if self.index.folder is None else self.index.folder / "lexical"

    def _load(self, state: IndexState) -> _Snapshot | None:
        """The scores kept for this state; None when there are none, or other ones, or damaged ones."""
        if self._folder is None:
            return None
        folder = self._folder / str(state.revision)
        try:
            if json.loads((folder / _MANIFEST_NAME).read_bytes()) != _manifest(state):
                return None
            return _Snapshot(state, Bm25.load(folder))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, snapshot: _Snapshot) -> None:
        """Write the scores beside the index; a failure costs only that they are built again by the next process."""
        if self._folder is None or self.index.read_only:
            return
        target = self._folder / str(snapshot.state.revision)
        temporary = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            temporary.mkdir(parents=True)
            snapshot.scores.save(temporary)
            (temporary / _MANIFEST_NAME).write_text(json.dumps(_manifest(snapshot.state)), encoding="utf-8")
            _sync(temporary)
            _replace(temporary, target)
        except OSError:
            pass
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _remove_older(self._folder, snapshot.state.revision)


def _manifest(state: IndexState) -> dict[str, int | str]:
    return {"revision": state.revision, "token": state.token, "analyzer_version": ANALYZER_VERSION}


def _sync(folder: Path) -> None:
    """Bring every file to the disk before the folder gets its name, so that a power cut leaves no hollow one."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def _replace(source: Path, target: Path) -> None:
    """Rename a folder to a name that may be taken by a stale or a damaged one, or just now by another process."""
    try:
        source.rename(target)
    except OSError:
        aside = source.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        target.rename(aside)
        source.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def _remove_older(folder: Path, revision: int) -> None:
    """Delete what no later process will read; a process that has it mapped keeps its pages."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            stale = path.name.startswith(_TEMPORARY) and time.time() - path.stat().st_mtime > _STALE_SECONDS
            if stale or (path.name.isdecimal() and int(path.name) < revision):
                shutil.rmtree(path, ignore_errors=True)
