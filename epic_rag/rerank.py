"""Ordering retrieved passages anew, while their KV is already on its way to the store's fastest tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

    The text of a passage stays as it was stored, even where a compressor returns some of it only. No candidates are not
    ranked: many rerankers refuse them.
    """
    if not candidates:
        return []
    with _prefetched(engine, candidates):
        return _chosen(candidates, reranker.compress_documents(_documents(candidates), question, callbacks), k)


async def arerank(
    engine: Engine,
    question: str,
    candidates: Sequence[Retrieved],
    reranker: BaseDocumentCompressor,
    k: int,
    callbacks: Callbacks = None,
) -> list[Retrieved]:
    """`rerank` on an event loop, by the reranker's own async method."""
    if not candidates:
        return []
    with _prefetched(engine, candidates):
        return _chosen(candidates, await reranker.acompress_documents(_documents(candidates), question, callbacks), k)


@contextmanager
def _prefetched(engine: Engine, candidates: Sequence[Retrieved]) -> Iterator[None]:
    """Move the candidates' KV meanwhile; what is not there at the end is left where it is."""
    ahead = engine.loader.prefetch([passage.token_ids for passage in candidates]) if engine.model.can_link else None
    try:
        yield
    finally:
        if ahead is not None:
            ahead.cancel()


def _documents(candidates: Sequence[Retrieved]) -> list[Document]:
    return [
        Document(page_content=one.text, metadata={"source": one.source, "score": one.score, _RANK: rank})
        for rank, one in enumerate(candidates)
    ]


def _chosen(candidates: Sequence[Retrieved], ranked: Sequence[Document], k: int) -> list[Retrieved]:
    chosen: dict[int, Retrieved] = {}
    for document in ranked:
        rank = document.metadata.get(_RANK)
        if isinstance(rank, int):
            score = document.metadata.get("relevance_score", document.metadata.get("score"))
            chosen.setdefault(rank, replace(candidates[rank], score=number(score)))
    return list(chosen.values())[:k]
