"""Passages for the tests of the index and the retrievers."""

from collections.abc import Callable

import pytest

from epic_rag.retrievers import Passage, PassageIndex

PutTexts = Callable[..., list[Passage]]


@pytest.fixture
def put_texts() -> PutTexts:
    """Puts one document whose passages have the given texts, and returns the passages."""

    def put(index: PassageIndex, source: str, *texts: str) -> list[Passage]:
        passages = [
            Passage.create(
                source=source, position=position, title=source.title(), text=text, token_ids=range(len(text))
            )
            for position, text in enumerate(texts)
        ]
        index.put_document(source, f"digest of {texts}", "tokenizer", "options", passages)
        return passages

    return put
