"""The ranks of the replacement policies; what they do to a store is in the conformance suite."""

import pytest

from epic_rag.kvstore.replacement import GDSF, LFU, LRU, Use, make_replacement


def use(last_use: int = 1, uses: int = 1, size_bytes: int = 100, cost_seconds: float = 1.0, floor: float = 0.0) -> Use:
    return Use(last_use, uses, size_bytes, cost_seconds, floor)


def test_lru_ranks_by_last_use() -> None:
    assert LRU().rank(use(last_use=2, uses=1)) > LRU().rank(use(last_use=1, uses=9))


def test_lfu_ranks_by_uses() -> None:
    assert LFU().rank(use(last_use=1, uses=9)) > LFU().rank(use(last_use=2, uses=1))


def test_gdsf_ranks_by_seconds_saved_per_byte_above_the_floor() -> None:
    rank = GDSF().rank
    assert rank(use(uses=3, size_bytes=50, cost_seconds=2.0, floor=7.0)) == 7.0 + 3 * 2.0 / 50
    assert rank(use(cost_seconds=2.0)) > rank(use(cost_seconds=1.0)) > rank(use(size_bytes=200))
    assert rank(use(cost_seconds=0.0, floor=1.0)) > rank(use(uses=50)), "a new entry outlives what was once popular"
    assert rank(use(size_bytes=0)) == 1.0


def test_the_registry_knows_all_and_says_so() -> None:
    assert [type(make_replacement(name)) for name in ("lru", "lfu", "gdsf")] == [LRU, LFU, GDSF]
    with pytest.raises(ValueError, match="lru, lfu, gdsf"):
        make_replacement("random")
