from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget, as_budget, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1024", KVBudget(tokens=1024)),
        (" 1 ", KVBudget(tokens=1)),
        ("25%", KVBudget(ratio=0.25)),
        ("12.5 %", KVBudget(ratio=0.125)),
        ("0.25", KVBudget(ratio=0.25)),
        ("1.0", KVBudget(ratio=1.0)),
        ("100%", KVBudget(ratio=1.0)),
        ("64MB", KVBudget(size_bytes=64_000_000)),
        ("64MiB", KVBudget(size_bytes=64 * 2**20)),
        ("512B", KVBudget(size_bytes=512)),
    ],
)
def test_ways_to_write_a_budget(text: str, budget: KVBudget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "at least 1 token, got 0"),
        ("0%", "above 0 and at most 1"),
        ("101%", "at most 1 .100%., got 1.01"),
        ("1.5", "at most 1 .100%., got 1.5"),
        ("-3", "'-3' is no KV budget: write tokens"),
        ("", "'' is no KV budget"),
        ("many", "'many' is no KV budget"),
        ("0MB", "'0MB' is no KV budget"),
        ("1e3", "'1e3' is no KV budget"),
    ],
)
def test_what_is_no_budget_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_budget(text)


@pytest.mark.parametrize("given", [{}, {"tokens": 3, "ratio": 0.5}, {"size_bytes": 0}])
def test_a_budget_is_one_of_three(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="KV budget"):
        KVBudget(**given)


@given(st.integers(1, 100), st.integers(1, 100_000))
def test_percentages_are_exact(percent: int, num_tokens: int) -> None:
    """0.29 of 100 tokens is 29, though 0.29 * 100 is not."""
    expected = max(1, percent * num_tokens // 100)
    assert parse_budget(f"{percent}%").resolve(num_tokens, 1) == expected
    if percent < 100:
        assert parse_budget(f"0.{percent:02}").resolve(num_tokens, 1) == expected


def test_tokens_and_bytes() -> None:
    assert KVBudget(tokens=9).resolve(4, 100) == 9
    assert KVBudget(size_bytes=1999).resolve(10_000, 100) == 19
    assert KVBudget(size_bytes=100).resolve(10_000, 100) == 1
    with pytest.raises(ConfigError, match="99 bytes holds no token: one takes 100 bytes"):
        KVBudget(size_bytes=99).resolve(10_000, 100)


@pytest.mark.parametrize("budget", [0.25, True, [1], "9" * 16, "9" * 5000, f"{'9' * 400}GB", f"{'9' * 400}%"])
def test_what_is_no_budget_is_refused_whatever_its_type(budget: object) -> None:
    with pytest.raises(ConfigError, match="is no KV budget"):
        as_budget(budget)  # type: ignore[arg-type]
