"""Scores of rows to the best of them, the same way for every search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from epic_rag.retrievers.index import PassageIndex
    from epic_rag.retrievers.passage import Passage

Rows = npt.NDArray[np.intp]


def best_rows(scores: npt.NDArray[np.float32], candidates: Rows, k: int) -> Rows:
    """The rows with the largest scores.

    Args:
        scores: One for each row, `[P]`.
        candidates: Rows to choose from, rising.
        k: How many at most, from 1.

    Returns:
        Rows by falling score, equal scores by row.
    """
    if len(candidates) > k:  # drop what cannot be among the k, and keep all that tie for the last place
        least = np.partition(scores[candidates], -k)[-k]
        candidates = candidates[scores[candidates] >= least]
    return candidates[np.lexsort((candidates, -scores[candidates]))][:k]


class RowNumbers:
    """Passage ids to the rows they stand in.

    Args:
        ids: Passage ids as ASCII bytes, `[P]`, in the order of the rows.
    """

    def __init__(self, ids: npt.NDArray[np.bytes_]) -> None:
        self._ids = ids

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name.decode(): row for row, name in enumerate(self._ids.tolist())}

    def of(self, ids: Iterable[str]) -> Rows:
        """The rows of these passages, rising; ids without a row are left out."""
        return np.sort(np.array([self._row[name] for name in ids if name in self._row], dtype=np.intp))


def found_passages(index: PassageIndex, scored: Sequence[tuple[str, float]]) -> list[tuple[Passage, float]]:
    """The passages of scored ids, in their order; one that has been deleted meanwhile is left out."""
    passages = {passage.id: passage for passage in index.get([name for name, _ in scored])}
    return [(passages[name], score) for name, score in scored if name in passages]
