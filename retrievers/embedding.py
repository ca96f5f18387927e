"""From passages to their vectors, embedding only the texts that have none yet."""

from __future__ import annotations

import numpy as np

from epic_rag.retrievers.embedder import Embedder, Matrix
from epic_rag.retrievers.errors import EmbedderError
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.vectors import Vectors, text_key

_BATCH_TEXTS = 256  # given to the embedder at once, which sorts and cuts them as it likes
_SAME_COSINE = 0.99  # of one text embedded twice: a lower one is another model, or the same with another prompt


def is_same(old: Matrix, new: Matrix) -> bool:
    """Whether two vectors of one text, unit or zero, are of one model."""
    return old.shape == new.shape and (float(old @ new) >= _SAME_COSINE or not (old.any() or new.any()))


class EmbedderChangedError(Exception):
    """The embedder gives another vector than it once did for the same text; caught by `DenseIndex`."""


class Embedding:
    """Collects passages in the order of the rows to be.

    Where old vectors are used again and new ones join them, one old text is embedded once more to see that both come
    from the same model.

    Args:
        embedder: Makes the vectors of new texts.
        known: Vectors made before by the same embedder.
    """

    def __init__(self, embedder: Embedder, known: Vectors) -> None:
        self.num_embedded = 0
        self._embedder = embedder
        self._blocks: list[Matrix] = [known.matrix] if len(known.keys) else []
        self._num_known = len(known.keys)
        self._row: dict[bytes, int] = {key: row for row, key in enumerate(known.keys.tolist())}
        self._ids: list[bytes] = []
        self._keys: list[bytes] = []
        self._waiting: dict[bytes, str] = {}
        self._sample: tuple[bytes, str] | None = None
        self._is_checked = False

    def add(self, passage: Passage) -> None:
        """Take the next passage.

        Raises:
            EmbedderError: See `Embedder.documents`.
            EmbedderChangedError: The known vectors are of no use.
        """
        key = text_key(passage.text)
        self._ids.append(passage.id.encode())
        self._keys.append(key)
        if key not in self._row:
            self._waiting[key] = passage.text
            if len(self._waiting) == _BATCH_TEXTS:
                self._embed()
        elif self._sample is None and self._row[key] < self._num_known:
            self._sample = key, passage.text

    def finish(self) -> Vectors:
        """The vectors of all passages taken; raises as `add`."""
        if self._waiting or (self.num_embedded and self._sample and not self._is_checked):
            self._embed()
        rows = [self._row[key] for key in self._keys]
        return Vectors(np.array(self._ids, "S64"), np.array(self._keys, "S32"), self._matrix(rows))

    def so_far(self) -> Vectors:
        """Every vector there is, under its key alone: what an interrupted run leaves to the next."""
        keys = np.array(list(self._row), "S32")
        return Vectors(np.zeros(len(keys), "S64"), keys, self._matrix(list(self._row.values())))

    def _embed(self) -> None:
        texts = list(self._waiting.values())
        again = self._sample if not self._is_checked else None
        block = self._embedder.documents([*texts, again[1]] if again else texts)
        if again:
            self._check(again[0], block[-1])
        first = sum(map(len, self._blocks))
        if self._blocks and (length := self._blocks[0].shape[1]) != block.shape[1]:
            if self._num_known:
                raise EmbedderChangedError
            raise EmbedderError(
                f"the embedder {self._embedder.name} gave vectors of {length} and of {block.shape[1]} numbers; "
                "expected one length. Check it with a text of your own."
            )
        self._blocks.append(block[: len(texts)])
        self._row.update({key: first + row for row, key in enumerate(self._waiting)})
        self.num_embedded += len(texts)
        self._waiting.clear()

    def _check(self, key: bytes, vector: Matrix) -> None:
        """See that an old vector is as it would be today."""
        if not is_same(self._blocks[0][self._row[key]], vector):
            raise EmbedderChangedError
        self._is_checked = True

    def _matrix(self, rows: list[int]) -> Matrix:
        if not rows:
            return Vectors.empty().matrix
        self._blocks = [np.concatenate(self._blocks)] if len(self._blocks) > 1 else self._blocks
        chosen: Matrix = self._blocks[0][np.array(rows, dtype=np.intp)]
        return chosen
