"""Seconds per stage, under the stages' own names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

_Step = TypeVar("_Step")

STAGES = ("retrieve", "load", "link", "evict", "decode")


class StageClock:
    """Adds up the seconds spent in each stage of one question."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside this block to stage `name`."""
        began = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += perf_counter() - began

    def timed(self, name: str, steps: Iterator[_Step]) -> Iterator[_Step]:
        """Count the time spent inside `steps` to stage `name`, not what is done with what they yield."""
        while True:
            with self.stage(name):
                try:
                    step = next(steps)
                except StopIteration:
                    return
            yield step

    def seconds(self, name: str) -> float:
        """Seconds in stage `name` so far."""
        return self._seconds[name]

    def elapsed_seconds(self) -> float:
        """Seconds since the question was asked."""
        return perf_counter() - self._began
