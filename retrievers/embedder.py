"""LangChain embeddings to rows of a matrix: unit vectors, checked, and the name they are remembered by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings

from epic_rag.retrievers.errors import EmbedderError

Matrix = npt.NDArray[np.float32]

_NAMING = ("model_name", "model", "model_id", "repo_id", "deployment", "azure_deployment", "name")


def embedder_name(embeddings: Embeddings) -> str:
    """Class and model of LangChain embeddings, which have no common way to say what they are."""
    kind = f"{type(embeddings).__module__}.{type(embeddings).__qualname__}"
    named = (getattr(embeddings, attribute, None) for attribute in _NAMING)
    model = next((value for value in named if isinstance(value, str) and value), "")
    return f"{kind}:{model}" if model else kind


class Embedder:
    """Embeddings whose answers are checked.

    Args:
        embeddings: Any LangChain embeddings.
        name: What tells their vectors from those of others; by default `embedder_name`.
    """

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        self._embeddings = embeddings
        self.name = name or embedder_name(embeddings)

    def documents(self, texts: Sequence[str]) -> Matrix:
        """Unit vectors of passages, `[len(texts), D]`.

        Raises:
            EmbedderError: The embedder failed, or what it gave are no vectors of one length.
        """
        try:
            given = self._embeddings.embed_documents(list(texts))
        except Exception as error:  # whatever a service or a model raises
            raise self._failed(error) from error
        return self._checked(given, len(texts))

    def query(self, text: str) -> Matrix:
        """Unit vector of a question, `[D]`.

        Raises:
            EmbedderError: As for `documents`.
        """
        try:
            given = self._embeddings.embed_query(text)
        except Exception as error:
            raise self._failed(error) from error
        vector: Matrix = self._checked([given], 1)[0]
        return vector

    def _failed(self, error: Exception) -> EmbedderError:
        return EmbedderError(f"the embedder {self.name} failed: {type(error).__name__}: {error}. Mend it and repeat.")

    def _checked(self, given: Sequence[Sequence[float]], count: int) -> Matrix:
        try:
            vectors = np.asarray(given, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise self._failed(error) from error
        if vectors.ndim != 2 or vectors.shape[0] != count or vectors.shape[1] == 0:
            raise EmbedderError(
                f"the embedder {self.name} gave an array of shape {list(vectors.shape)}; expected {count} vectors of "
                "one length. Check it with a text of your own."
            )
        if not np.isfinite(vectors).all():
            raise EmbedderError(
                f"the embedder {self.name} gave numbers that are not finite. Check its model and dtype."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.zeros_like(vectors)
        np.divide(vectors, lengths, out=unit, where=lengths > 0)
        return unit
