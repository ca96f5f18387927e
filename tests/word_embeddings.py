"""Embeddings for the tests: deterministic, quick, and counting what they are asked."""

from __future__ import annotations

import hashlib

import numpy as np
from langchain_core.embeddings import Embeddings

from epic_rag.retrievers.analysis import words


class WordEmbeddings(Embeddings):
    """The sum of one random vector a word: texts that share words are near."""

    def __init__(self, model: str = "words", dimension: int = 48, salt: str = "") -> None:
        self.model = model
        self.dimension = dimension
        self.salt = salt
        self.asked: list[str] = []

    def vector(self, text: str) -> list[float]:
        total = np.full(self.dimension, 0.01)
        for word in words(text):
            seed = int.from_bytes(hashlib.sha256(f"{self.salt}{word}".encode()).digest()[:8], "little")
            total += np.random.default_rng(seed).standard_normal(self.dimension)
        return total.tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked += texts
        return [self.vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vector(text)
