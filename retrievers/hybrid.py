"""Several searches fused into one."""

from __future__ import annotations

from collections.abc import Sequence

from epic_rag.retrievers.fusion import ConvexCombination, Fusion
from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.search import Progress, Search
from epic_rag.retrievers.where import Where

_CANDIDATES = 100  # of each search, or k where that is more


class HybridIndex:
    """Searches over one index, fused; safe for threads where they are.

    Args:
        searches: Two or more over the same index, such as a `LexicalIndex` and a `DenseIndex`.
        fusion: How; by default the `ConvexCombination` of a `LexicalIndex` and a `DenseIndex`, in this order.

    Raises:
        ValueError: None was given, or they search different indexes.
    """

    def __init__(self, searches: Sequence[Search], fusion: Fusion | None = None) -> None:
        if not searches or any(search.index is not searches[0].index for search in searches):
            raise ValueError(f"expected searches over one PassageIndex, got {len(searches)} over different or none")
        self.searches = tuple(searches)
        self._fusion = ConvexCombination() if fusion is None else fusion
        self._fusion([{} for _ in searches])  # one that is for another number of searches says so now

    @property
    def index(self) -> PassageIndex:
        """The passages that are searched."""
        return self.searches[0].index

    def search(self, query: str, k: int, where: Where | None = None) -> list[tuple[Passage, float]]:
        """The best passages for a question.

        Args:
            query: Text in any script; an empty one finds nothing.
            k: How many at most.
            where: Only passages whose fields match are ranked (see `where.Where`); None ranks all.

        Returns:
            (passage, fused score) by falling score, equal scores by source and position.

        Raises:
            EmbedderError: An embedder failed.
            ValueError: `where` names a field that there is not.
        """
        if k < 1:
            return []
        found = [search.search(query, max(k, _CANDIDATES), where) for search in self.searches]
        passages = {passage.id: passage for ranking in found for passage, _ in ranking}
        scores = self._fusion([{passage.id: score for passage, score in ranking} for ranking in found])
        order = sorted(passages.values(), key=lambda one: (-scores[one.id], one.source, one.position))
        return [(passage, scores[passage.id]) for passage in order[:k]]

    def refresh(self, progress: Progress | None = None) -> None:
        """Prepare every search; each tells its own progress."""
        for search in self.searches:
            search.refresh(progress)
