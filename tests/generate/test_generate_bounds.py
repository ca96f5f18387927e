from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.generate.bounds import Bounds

SIZES = (st.integers(1, 60), st.integers(0, 40), st.integers(1, 120), st.integers(1, 80))


@pytest.mark.parametrize(
    ("mode", "budget", "expected"),
    [
        ("auto", None, Bounds(None, None, 0, 59)),
        ("auto", 10, Bounds(10, 10, 0, 18)),
        ("auto", 45, Bounds(45, 45, 0, 50)),  # no more than the prompt has
        ("auto", 55, Bounds(None, 55, 0, 55)),
        ("auto", 59, Bounds(None, None, 0, 59)),
        ("encoding", 10, Bounds(10, None, 0, 19)),
        ("encoding", 30, Bounds(30, None, 0, 39)),
        ("encoding", 50, Bounds(None, None, 0, 59)),
        ("decoding", 4, Bounds(None, 54, 50, 54)),
        ("decoding", 9, Bounds(None, None, 50, 59)),
    ],
)
def test_sizes_of_fifty_tokens_and_nine_of_the_answer(mode: str, budget: int | None, expected: Bounds) -> None:
    assert Bounds.of_mode(mode, 50, 9, budget, 8) == expected


@given(st.sampled_from(["encoding", "decoding", "auto"]), *SIZES)
def test_never_more_than_budget_and_stride_or_budget_and_answer(
    mode: str, num_tokens: int, answer: int, budget: int, stride: int
) -> None:
    bounds = Bounds.of_mode(mode, num_tokens, answer, budget, stride)
    assert bounds.capacity <= num_tokens + answer
    if mode == "auto":
        assert bounds.capacity <= budget + stride
    elif mode == "encoding":
        assert bounds.capacity <= budget + max(stride, answer)
    else:
        assert bounds.capacity <= num_tokens + budget
