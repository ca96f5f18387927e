from __future__ import annotations

import pytest

from epic_rag.errors import ConfigError
from epic_rag.selectors import ChunkSpan, parse_selector

CHUNKS = [ChunkSpan(10, 20), ChunkSpan(20, 22), ChunkSpan(22, 40, is_exact=True), ChunkSpan(40, 41)]


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("none", []),
        ("lego:0", []),
        ("lego:4", [10, 11, 12, 13, 20, 21, 40]),
        ("lego:1000", [*range(10, 22), 40]),
        ("full", list(range(10, 41))),
    ],
)
def test_positions(text: str, positions: list[int]) -> None:
    selector = parse_selector(text)
    assert selector.name == text
    assert selector.positions(CHUNKS) == positions


@pytest.mark.parametrize("text", ["", "lego", "lego:", "lego:-1", "lego:x", "FULL", "cacheblend:0.15", "lego:9999999"])
def test_unknown_selectors_are_refused_with_the_list(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected one of none, lego:K, full"):
        parse_selector(text)
