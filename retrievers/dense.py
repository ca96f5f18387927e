"""Search by meaning: exact cosine over the vectors of a `PassageIndex`, kept in step with its revision."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from langchain_core.embeddings import Embeddings

from epic_rag.retrievers.embedder import Embedder
from epic_rag.retrievers.embedding import EmbedderChangedError, Embedding, is_same
from epic_rag.retrievers.errors import EmbedderError
from epic_rag.retrievers.index import IndexState, PassageIndex
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.ranking import RowNumbers, best_rows, found_passages
from epic_rag.retrievers.search import Progress
from epic_rag.retrievers.snapshots import Manifest, SnapshotFolder
from epic_rag.retrievers.vectors import Vectors, text_key
from epic_rag.retrievers.where import Where

_FORMAT = 1  # raise at every change of what is kept or of how it is made
_MAX_BUILDS = 3
_KEPT_AT_LEAST = 2048  # new vectors between two safeguards of a long build, or an eighth of all there are


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Vectors, the content of the index that they belong to, and which passage stands in which row."""

    state: IndexState
    vectors: Vectors
    numbers: RowNumbers

    @classmethod
    def of(cls, state: IndexState, vectors: Vectors) -> Self:
        return cls(state, vectors, RowNumbers(vectors.ids))


class DenseIndex:
    """Cosine search over the passages of an index with any LangChain embeddings; safe for threads.

    The vectors are kept as float32 in `<folder>/<revision>/` and memory-mapped; every question is compared with all of
    them. Where the index has moved on, only texts without a vector are embedded; an interrupted run keeps what it has.
    Another embedder, told by its name or by what it gives, starts anew.

    Args:
        index: The passages; a change made to it by any process is seen by the next search.
        embeddings: Any LangChain embeddings.
        folder: Where the vectors are kept; by default `dense` beside the index, in memory for an index in memory.
        name: What tells these embeddings from others; by default their class and model.
    """

    def __init__(
        self, index: PassageIndex, embeddings: Embeddings, folder: Path | None = None, *, name: str | None = None
    ) -> None:
        self.index = index
        self._embedder = Embedder(embeddings, name)
        if folder is None and index.folder is not None:
            folder = index.folder / "dense"
        self._snapshots = SnapshotFolder(folder, read_only=index.read_only)
        self._lock = threading.Lock()
        self._snapshot: _Snapshot | None = None
        self._is_checked = False

    def search(self, query: str, k: int, where: Where | None = None) -> list[tuple[Passage, float]]:
        """The passages nearest to a question.

        Args:
            query: Text; an empty one finds nothing.
            k: How many at most; so many are found when there are so many.
            where: Only passages whose fields match are ranked (see `where.Where`); None ranks all.

        Returns:
            (passage, cosine) by falling cosine, equal ones by source and position.

        Raises:
            EmbedderError: The embedder failed.
            ValueError: `where` names a field that there is not.
        """
        if not query.strip() or k < 1:
            return []
        snapshot = self._current()
        ids = self.index.ids(where) if where else None
        if not len(snapshot.vectors.ids) or ids == []:
            return []
        vector = self._embedder.query(query.encode(errors="replace").decode())
        if vector.shape[0] != snapshot.vectors.matrix.shape[1]:
            snapshot = self._renewed(vector.shape[0])
            if not len(snapshot.vectors.ids):  # emptied meanwhile
                return []
        rows = np.arange(len(snapshot.vectors.ids)) if ids is None else snapshot.numbers.of(ids)
        scores = np.asarray(snapshot.vectors.matrix @ vector)
        best = best_rows(scores, rows, k)
        return found_passages(self.index, [(snapshot.vectors.ids[row].decode(), float(scores[row])) for row in best])

    def refresh(self, progress: Progress | None = None) -> None:
        """Make the vectors fit the index now; costs nothing when they do already.

        Args:
            progress: Told how far it is.

        Raises:
            EmbedderError: The embedder failed; what it gave before is kept.
        """
        self._current(progress)

    def _current(self, progress: Progress | None = None) -> _Snapshot:
        state = self.index.state
        snapshot = self._snapshot
        if snapshot is not None and snapshot.state == state:
            return snapshot
        with self._lock:  # one thread builds, the others wait for it
            state = self.index.state
            if self._snapshot is None or self._snapshot.state != state:
                loaded = self._load(state)
                changed = loaded is not None and not self._still_gives(loaded.vectors)
                self._snapshot = self._build(progress, anew=changed) if loaded is None or changed else loaded
            return self._snapshot

    def _still_gives(self, vectors: Vectors) -> bool:
        """Whether the embedder gives what it once gave: one text is embedded again, once in the life of this object."""
        passage = None if self._is_checked else next(iter(self.index.passages()), None)
        if passage is None:
            return True
        rows = np.flatnonzero(vectors.keys == text_key(passage.text))
        self._is_checked = True
        return not len(rows) or is_same(vectors.matrix[rows[0]], self._embedder.documents([passage.text])[0])

    def _renewed(self, dimension: int) -> _Snapshot:
        """Vectors as long as those of the questions, which come from another model than the kept ones."""
        with self._lock:
            if self._snapshot is None or self._snapshot.vectors.matrix.shape[1] != dimension:
                self._snapshot = self._build(None, anew=True)
            if (length := self._snapshot.vectors.matrix.shape[1]) not in (0, dimension):
                raise EmbedderError(
                    f"the embedder {self._embedder.name} gives passages {length} numbers and questions {dimension}; "
                    "expected as many. Name embeddings that serve both."
                )
            return self._snapshot

    def _build(self, progress: Progress | None, *, anew: bool = False) -> _Snapshot:
        """Build from a content that held still; after some tries from one that did not, to be built again next time."""
        known = Vectors.empty() if anew else self._known()
        for _ in range(_MAX_BUILDS):
            state = self.index.state
            try:
                known = self._embedded(state, known, progress)
            except EmbedderChangedError:
                known = self._embedded(state, Vectors.empty(), progress)
            if self.index.state == state:
                self._keep(state.revision, state.token, known)
                break
        return _Snapshot.of(state, known)

    def _embedded(self, state: IndexState, known: Vectors, progress: Progress | None) -> Vectors:
        """The vectors of all passages; what an interruption would lose is kept now and then, and at its instant."""
        embedding, total, kept = Embedding(self._embedder, known), self.index.num_passages, 0
        try:
            for done, passage in enumerate(self.index.passages()):
                embedding.add(passage)
                if progress is not None:
                    progress(done, total)
                if embedding.num_embedded - kept >= max(_KEPT_AT_LEAST, embedding.num_embedded // 8):
                    kept = embedding.num_embedded
                    self._keep(state.revision, "", embedding.so_far())
            vectors = embedding.finish()
        except EmbedderChangedError:
            raise
        except BaseException:
            if embedding.num_embedded > kept:
                self._keep(state.revision, "", embedding.so_far())
            raise
        if progress is not None:
            progress(total, total)
        return vectors

    def _known(self) -> Vectors:
        """Vectors made before by this embedder, for whatever content; empty when there are none."""
        mine, now = self._snapshot, self.index.revision
        for revision in self._snapshots.revisions():
            if mine is not None and revision <= mine.state.revision:
                break
            if mine is not None and revision > now:  # of an index that was here before this one
                continue
            manifest = self._snapshots.manifest(revision) or {}
            expected = self._manifest(revision, str(manifest.get("token")))
            found = self._mapped(revision, expected)
            if found is not None:
                return found
        return Vectors.empty() if mine is None else mine.vectors

    def _load(self, state: IndexState) -> _Snapshot | None:
        """The vectors kept for this state; None when there are none, or other ones, or damaged ones."""
        found = self._mapped(state.revision, self._manifest(state.revision, state.token))
        return None if found is None else _Snapshot.of(state, found)

    def _mapped(self, revision: int, expected: Manifest) -> Vectors | None:
        folder, manifest = self._snapshots.path(revision), self._snapshots.manifest(revision)
        if folder is None or manifest is None or any(manifest.get(name) != expected[name] for name in expected):
            return None
        try:
            return Vectors.load(folder, manifest)
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    def _keep(self, revision: int, token: str, vectors: Vectors) -> None:
        """Write vectors beside the index; those under an empty token are a safeguard, and fit no content."""
        if self._snapshots.is_kept:
            self._snapshots.keep(revision, {**self._manifest(revision, token), **vectors.checksums()}, vectors.save)

    def _manifest(self, revision: int, token: str) -> dict[str, int | str]:
        return {"format": _FORMAT, "revision": revision, "token": token, "embedder": self._embedder.name}
