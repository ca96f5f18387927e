"""Ordering retrieved passages anew, while their KV is already on its way to the store's fastest tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document

from epic_rag.engine import Engine
from epic_rag.retrieve import Retrieved, number

CANDIDATES_PER_PASSAGE = 4
"""Passages that are retrieved for each one that is asked for, where they are ranked anew."""
_RANK = "epic_rag_candidate"


def rerank(
    engine: Engine,
    question: str,
    candidates: Sequence[Retrieved],
    reranker: BaseDocumentCompressor,
    k: int,
    callbacks: Callbacks = None,
) -> list[Retrieved]:
    """The `k` best candidates in the order of a LangChain reranker, with its `relevance_score` where it gives one.

    The text of a passage stays as it was stored, even where a compressor returns some of it only.
    """
    ahead = engine.loader.prefetch([passage.token_ids for passage in candidates]) if engine.model.can_link else None
    documents = [
        Document(page_content=one.text, metadata={"source": one.source, "score": one.score, _RANK: rank})
        for rank, one in enumerate(candidates)
    ]
    chosen: dict[int, Retrieved] = {}
    for document in reranker.compress_documents(documents, question, callbacks):
        rank = document.metadata.get(_RANK)
        if isinstance(rank, int):
            score = document.metadata.get("relevance_score", document.metadata.get("score"))
            chosen.setdefault(rank, replace(candidates[rank], score=number(score)))
    if ahead is not None:
        ahead.cancel()
    return list(chosen.values())[:k]
