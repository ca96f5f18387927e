"""At most one at a time makes the same thing."""

import threading
from collections import Counter

import pytest
from redis_servers import wait_until

from epic_rag.kvstore.single_flight import SingleFlight
from epic_rag.kvstore.testing import in_threads


def test_those_who_wait_share_what_is_made() -> None:
    flights: SingleFlight[object] = SingleFlight()
    made, results = [], []

    def make() -> object:
        wait_until(lambda: flights.waiting("a") == 7, "the others")
        made.append(object())
        return made[-1]

    in_threads(8, lambda _: results.append(flights.run("a", make)))
    assert len(made) == 1
    assert results == made * 8
    assert flights.waiting("a") == 0
    assert flights._flights == {}


def test_none_is_a_result_too() -> None:
    flights: SingleFlight[None] = SingleFlight()
    made = []

    def make() -> None:
        wait_until(lambda: flights.waiting("a") == 3, "the others")
        made.append(1)

    in_threads(4, lambda _: flights.run("a", make))
    assert made == [1]


def test_different_keys_do_not_wait_for_each_other() -> None:
    flights: SingleFlight[int] = SingleFlight()
    together = threading.Barrier(4)
    results = [0] * 4

    def work(index: int) -> None:
        results[index] = flights.run(f"k{index}", lambda: together.wait(30))

    in_threads(4, work)
    assert sorted(results) == [0, 1, 2, 3]


def test_an_error_reaches_only_its_own_thread() -> None:
    flights: SingleFlight[int] = SingleFlight()
    tries, outcomes = Counter[str](), Counter[str]()
    lock = threading.Lock()

    def make() -> int:
        with lock:
            tries["all"] += 1
            number = tries["all"]
        if number == 1:
            wait_until(lambda: flights.waiting("a") == 3, "the others")
            raise KeyboardInterrupt
        return number

    def work(_: int) -> None:
        try:
            flights.run("a", make)
        except KeyboardInterrupt:
            outcomes["interrupted"] += 1
        else:
            outcomes["made"] += 1

    in_threads(4, work)
    assert outcomes == {"interrupted": 1, "made": 3}


def test_never_two_at_once() -> None:
    flights: SingleFlight[int] = SingleFlight()
    at_work: Counter[str] = Counter()
    lock = threading.Lock()

    def work(index: int) -> None:
        for turn in range(200):
            key = f"k{(index + turn) % 3}"

            def make(key: str = key) -> int:
                with lock:
                    at_work[key] += 1
                    assert at_work[key] == 1
                with lock:
                    at_work[key] -= 1
                return 0

            flights.run(key, make)

    in_threads(8, work)


def test_a_make_may_ask_for_its_own_key() -> None:
    flights: SingleFlight[int] = SingleFlight()
    assert flights.run("a", lambda: flights.run("a", lambda: 1) + 1) == 2
    with pytest.raises(ZeroDivisionError):
        flights.run("a", lambda: 1 // 0)
    assert flights.run("a", lambda: 3) == 3
