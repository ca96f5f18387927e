"""Several searches fused by their ranks alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.search import Progress, Search
from epic_rag.retrievers.where import Where

RRF_CONSTANT = 60
_CANDIDATES = 100  # of each search, or k where that is more: what lies deeper adds less than 1/160

Item = TypeVar("Item", bound=Hashable)


def reciprocal_ranks(rankings: Sequence[Sequence[Item]], constant: int = RRF_CONSTANT) -> dict[Item, float]:
    """Fused scores of Cormack, Clarke and Büttcher ("Reciprocal Rank Fusion", SIGIR 2009).

    Args:
        rankings: Items by falling score, each once in a ranking.
        constant: Damps the weight of the first places.

    Returns:
        For each item the sum of 1 / (constant + rank) over the rankings that hold it, ranks from 1.
    """
    scores: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] = scores.get(item, 0.0) + 1 / (constant + rank)
    return scores


class HybridIndex:
    """Reciprocal rank fusion of searches over one index; safe for threads where they are.

    Args:
        searches: Two or more over the same index, such as a `LexicalIndex` and a `DenseIndex`.

    Raises:
        ValueError: None was given, or they search different indexes.
    """

    def __init__(self, searches: Sequence[Search]) -> None:
        if not searches or any(search.index is not searches[0].index for search in searches):
            raise ValueError(f"expected searches over one PassageIndex, got {len(searches)} over different or none")
        self.searches = tuple(searches)

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
        rankings = [
            [passage for passage, _ in search.search(query, max(k, _CANDIDATES), where)] for search in self.searches
        ]
        scores = reciprocal_ranks([[passage.id for passage in ranking] for ranking in rankings])
        passages = {passage.id: passage for ranking in rankings for passage in ranking}
        order = sorted(passages.values(), key=lambda one: (-scores[one.id], one.source, one.position))
        return [(passage, scores[passage.id]) for passage in order[:k]]

    def refresh(self, progress: Progress | None = None) -> None:
        """Prepare every search; each tells its own progress."""
        for search in self.searches:
            search.refresh(progress)
