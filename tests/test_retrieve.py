from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
import torch
from langchain_core.documents import Document
from tiny_models import make_tokenizer

from epic_rag.model.tokens import TextTokenizer
from epic_rag.retrieve import from_documents, number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), (0.5, 0.5), (np.float32(0.5), 0.5), (np.float64(0.5), 0.5), (np.int64(7), 7.0),
        (np.array(0.25), 0.25), (torch.tensor(0.25), 0.25), (Decimal("0.5"), 0.5),
        (None, 0.0), (True, 0.0), ("0.5", 0.0), ([0.5], 0.0), (float("nan"), 0.0), (np.float32("inf"), 0.0),
        (10**400, 0.0), (np.zeros(2), 0.0), (torch.zeros(2), 0.0), (1j, 0.0),
    ],
)  # fmt: skip
def test_whatever_is_a_number_is_taken(value: object, expected: float) -> None:
    assert number(value) == expected


@pytest.mark.parametrize("text", ["", " \n", "\n", "\ufeff", "\u3000"])
def test_a_blank_document_has_no_tokens(text: str) -> None:
    tokenizer = TextTokenizer(make_tokenizer())
    blank, solid = from_documents([Document(text), Document("words")], tokenizer)
    assert blank.token_ids == ()
    assert solid.token_ids == tuple(tokenizer.encode("words\n\n"))


def test_scores_of_vector_stores_are_shown() -> None:
    metadata = {"score": np.float32(0.5), "line": np.int64(3), "position": 2}
    (found,) = from_documents([Document("words", metadata=metadata)], TextTokenizer(make_tokenizer()))
    assert (found.score, found.line, found.position) == (0.5, 3, 2)
