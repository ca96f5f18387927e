"""BM25 scores over passages: built from a stream, kept in a folder, memory-mapped when read back.

Scores are those of bm25s (Lù, arXiv 2407.03618) in Lucene's form, where every matching word adds more than zero.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from epic_rag.retrievers.analysis import words
from epic_rag.retrievers.ranking import Rows, best_rows

if TYPE_CHECKING:
    from bm25s import BM25

    from epic_rag.retrievers.passage import Passage

_IDS_NAME = "ids.npy"
_SCORES_NAME = "bm25"


def _bm25s() -> type[BM25]:
    """Its class, imported late; its logger, which the import sets to DEBUG, is left to the application again."""
    from bm25s import BM25

    logger = logging.getLogger("bm25s")
    if logger.level == logging.DEBUG:
        logger.setLevel(logging.NOTSET)
    kind: type[BM25] = BM25
    return kind


@dataclass(frozen=True, slots=True)
class Bm25:
    """Scores of P passages.

    Attributes:
        ids: Passage ids as ASCII bytes, `[P]`; row p is passage p in the order of the stream it was built from.
        model: bm25s' sparse matrix of scores and its vocabulary; None when no passage has a word.
    """

    ids: npt.NDArray[np.bytes_]
    model: BM25 | None

    @classmethod
    def build(cls, passages: Iterable[Passage]) -> Bm25:
        """Score every word of every passage."""
        ids: list[bytes] = []
        rows: list[list[int]] = []
        vocabulary: dict[str, int] = {}
        for passage in passages:
            ids.append(passage.id.encode())
            rows.append([vocabulary.setdefault(word, len(vocabulary)) for word in words(passage.text)])
        names = np.array(ids, dtype=np.bytes_)
        if not vocabulary:  # bm25s cannot index nothing
            return cls(names, None)
        model = _bm25s()(method="lucene")
        model.index((rows, vocabulary), create_empty_token=False, show_progress=False)
        return cls(names, model)

    @classmethod
    def load(cls, folder: Path) -> Bm25:
        """Map what `save` wrote; nothing but the vocabulary is read before it is needed.

        Raises:
            OSError: A file is missing or unreadable.
            ValueError: A file is damaged.
        """
        ids: npt.NDArray[np.bytes_] = np.load(folder / _IDS_NAME, mmap_mode="r", allow_pickle=False)
        scores = folder / _SCORES_NAME
        if not scores.is_dir():
            return cls(ids, None)
        model = _bm25s().load(scores, mmap=True)
        if model.scores["num_docs"] != len(ids):
            raise ValueError(f"{folder} has scores for {model.scores['num_docs']} passages and {len(ids)} ids")
        return cls(ids, model)

    def save(self, folder: Path) -> None:
        """Write ids and scores into an existing folder."""
        np.save(folder / _IDS_NAME, self.ids, allow_pickle=False)
        if self.model is not None:
            self.model.save(folder / _SCORES_NAME)

    def top(self, query_words: Sequence[str], k: int, rows: Rows | None = None) -> list[tuple[str, float]]:
        """The best passages for some words.

        Args:
            query_words: Words as `analysis.words` makes them; unknown ones count nothing.
            k: How many at most.
            rows: Those to rank, rising; None ranks all. Scores are the same either way.

        Returns:
            (passage id, score) by falling score, equal scores in the order of the rows; scores are above 0.
        """
        known = [] if self.model is None else self.model.get_tokens_ids(list(query_words))
        if not known or self.model is None or k < 1:
            return []
        scores: npt.NDArray[np.float32] = self.model.get_scores_from_ids(known)
        matching = np.flatnonzero(scores > 0) if rows is None else rows[scores[rows] > 0]
        best = best_rows(scores, matching, k)
        return [(self.ids[row].decode(), float(scores[row])) for row in best]
