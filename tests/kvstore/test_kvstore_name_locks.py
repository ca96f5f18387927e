"""A lock for each name."""

import threading

import pytest

from epic_rag.kvstore.name_locks import NameLocks
from epic_rag.kvstore.testing import in_threads


def test_one_name_is_held_by_one_at_a_time_and_leaves_nothing_behind() -> None:
    locks = NameLocks()
    holders = dict.fromkeys("abc", 0)

    def work(index: int) -> None:
        for turn in range(300):
            name = "abc"[(index + turn) % 3]
            with locks.held(name):
                holders[name] += 1
                assert holders[name] == 1
                holders[name] -= 1

    in_threads(8, work)
    assert locks._entries == {}


def test_other_names_do_not_wait() -> None:
    locks = NameLocks()
    together = threading.Barrier(100)

    def work(index: int) -> None:
        with locks.held(f"k{index}"):
            together.wait(30)

    in_threads(100, work)
    assert not together.broken


def test_an_error_lets_go() -> None:
    locks = NameLocks()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), locks.held("a"):
            raise ZeroDivisionError
    assert locks._entries == {}
