"""What every task does last: the half, the count, the place of the gold passages, wrong choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Kind, Task
from epic_rag.evaluation.tasks.passages import holds, place_gold
from epic_rag.evaluation.tasks.request import Request

NUM_CHOICES = 3


def finish(request: Request, kind: Kind, items: Iterable[EvalItem], corpus: tuple[str, ...]) -> Task:
    """The task of the items wanted, taken as they come.

    Raises:
        ConfigError: none of them is wanted.
    """
    wanted = tuple(islice(_wanted(request, items), request.count))
    if not wanted:
        missing = "with a known gold passage " if request.gold_place else ""
        within = f"in the half '{request.half}'" if request.half else "at all"
        raise ConfigError(f"{request.spec}: there is no item {missing}{within}; leave options away")
    return Task(request.spec, kind, wanted, corpus)


def _wanted(request: Request, items: Iterable[EvalItem]) -> Iterator[EvalItem]:
    for item in items:
        if not request.wants(item.id):
            continue
        if request.gold_place is None:
            yield item
        elif item.gold:
            yield place_gold(item, request.gold_place)


def draw_choices(pool: Sequence[str], answers: Sequence[str], draw: Random) -> tuple[str, ...]:
    """Three wrong answers out of the answers of a task; none where they cannot be had.

    Neither holds the other, of any two of them and the right ones, so that none is right in part. Questions of yes or
    no get none: what could be wrong there is one answer.
    """
    if any(answer.casefold() in ("yes", "no") for answer in answers):
        return ()
    found: list[str] = []
    for choice in draw.sample(pool, len(pool)):
        if choice.casefold() not in ("yes", "no") and not any(_overlap(choice, one) for one in (*answers, *found)):
            found.append(choice)
            if len(found) == NUM_CHOICES:
                return tuple(found)
    return ()


def _overlap(one: str, other: str) -> bool:
    return one.casefold().strip() == other.casefold().strip() or holds(one, other) or holds(other, one)
