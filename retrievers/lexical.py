"""Search by words: BM25 over a `PassageIndex`, kept in step with its revision."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Self

from epic_rag.retrievers.analysis import ANALYZER_VERSION, query_words
from epic_rag.retrievers.bm25 import Bm25
from epic_rag.retrievers.index import IndexState, PassageIndex
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.ranking import RowNumbers, found_passages
from epic_rag.retrievers.search import Progress
from epic_rag.retrievers.snapshots import Manifest, SnapshotFolder
from epic_rag.retrievers.where import Where

_MAX_BUILDS = 3


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Scores, the content of the index that they were built from, and which passage stands in which row."""

    state: IndexState
    scores: Bm25
    numbers: RowNumbers

    @classmethod
    def of(cls, state: IndexState, scores: Bm25) -> Self:
        return cls(state, scores, RowNumbers(scores.ids))


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
        self._snapshots = SnapshotFolder(
            None if index.folder is None else index.folder / "lexical", read_only=index.read_only
        )
        self._lock = threading.Lock()
        self._snapshot: _Snapshot | None = None

    def search(self, query: str, k: int, where: Where | None = None) -> list[tuple[Passage, float]]:
        """The best passages for a question.

        Args:
            query: Text in any script; empty or without any known word, it finds nothing.
            k: How many at most.
            where: Only passages whose fields match are ranked (see `where.Where`); None ranks all.

        Returns:
            (passage, score) by falling score, equal scores by source and position; scores are above 0.

        Raises:
            ValueError: `where` names a field that there is not.
        """
        wanted = query_words(query)
        if not wanted or k < 1:
            return []
        snapshot = self._current()
        rows = snapshot.numbers.of(self.index.ids(where)) if where else None
        return found_passages(self.index, snapshot.scores.top(wanted, k, rows))

    def refresh(self, progress: Progress | None = None) -> None:
        """Make the scores fit the index now; costs nothing when they do already, and too little to tell progress."""
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
            snapshot = _Snapshot.of(state, Bm25.build(self.index.passages()))
            if self.index.state == state:
                self._keep(snapshot)
                break
        return snapshot

    def _load(self, state: IndexState) -> _Snapshot | None:
        """The scores kept for this state; None when there are none, or other ones, or damaged ones."""
        folder = self._snapshots.path(state.revision)
        if folder is None or self._snapshots.manifest(state.revision) != _manifest(state):
            return None
        try:
            return _Snapshot.of(state, Bm25.load(folder))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, snapshot: _Snapshot) -> None:
        """Write the scores beside the index; a failure costs only that they are built again by the next process."""
        self._snapshots.keep(snapshot.state.revision, _manifest(snapshot.state), snapshot.scores.save)


def _manifest(state: IndexState) -> Manifest:
    return {"revision": state.revision, "token": state.token, "analyzer_version": ANALYZER_VERSION}
