from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from corpus import make_engine
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document

from epic_rag.engine import Engine
from epic_rag.load import Loader
from epic_rag.rerank import arerank, rerank
from epic_rag.retrieve import Retrieved


class Strict(BaseDocumentCompressor):
    """Refuses an empty list, as the clients of several services do, and the text `trouble`."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        if not documents or documents[0].page_content == "trouble":
            raise ValueError("refused")
        scored = {**documents[-1].metadata, "relevance_score": np.float32(0.5)}
        return [Document(documents[-1].page_content, metadata=scored)]


class Ahead:
    """A prefetch that notes its end."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def engine() -> Engine:
    return make_engine("memory://")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    ahead = Ahead()
    monkeypatch.setattr(Loader, "prefetch", lambda *_: ahead)
    return ahead


def passages(*texts: str) -> list[Retrieved]:
    return [Retrieved(text, (1, 2), text, 0, 1.0) for text in texts]


async def _ranked(form: Callable[..., object], engine: Engine, found: list[Retrieved]) -> object:
    got = form(engine, "question", found, Strict(), 2)
    return await got if form is arerank else got  # type: ignore[misc]


@pytest.mark.parametrize("form", [rerank, arerank])
async def test_no_candidates_are_not_ranked(engine: Engine, ahead: Ahead, form: Callable[..., object]) -> None:
    assert await _ranked(form, engine, []) == []


@pytest.mark.parametrize("form", [rerank, arerank])
async def test_a_reranker_that_fails_ends_the_prefetch(
    engine: Engine, ahead: Ahead, form: Callable[..., object]
) -> None:
    with pytest.raises(ValueError, match="refused"):
        await _ranked(form, engine, passages("trouble"))
    assert ahead.cancelled == 1


@pytest.mark.parametrize("form", [rerank, arerank])
async def test_scores_of_numpy_are_numbers(engine: Engine, ahead: Ahead, form: Callable[..., object]) -> None:
    (got,) = await _ranked(form, engine, passages("a", "b"))  # type: ignore[misc]
    assert (got.text, got.score) == ("b", 0.5)
    assert ahead.cancelled == 1
