"""RULER-style variable tracking: which variables hold a value that was handed from one to the next?

Two chains of five variables each are hidden among each other, in the order in which they are set; one is asked for. The
chain length is RULER's (four hops), the second chain stands in for its noise, and the sentences are our own.

Source: Hsieh et al., arXiv 2404.06654.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from string import ascii_uppercase

from epic_rag.evaluation.item import Task
from epic_rag.evaluation.tasks.finish import NUM_CHOICES
from epic_rag.evaluation.tasks.planted import Riddle, planted
from epic_rag.evaluation.tasks.request import Request
from epic_rag.evaluation.tasks.ruler import SEPARATOR

NUM_VARIABLES = 5
_NAME_LETTERS = 3


def variable_tracking(request: Request) -> Task:
    """`ruler-vt:TOKENS`: in each wrong choice one variable of the other chain stands for one of the right ones."""
    request.no_more_arguments(1)
    return planted(request, _riddle)


def _riddle(draw: Random) -> Riddle:
    names = _names(draw, 2 * NUM_VARIABLES)
    asked, other = names[:NUM_VARIABLES], names[NUM_VARIABLES:]
    value, other_value = (str(number) for number in draw.sample(range(10_000, 100_000), 2))
    question = f"Which {NUM_VARIABLES} variables have the value {value}? List their names in the order of the text."
    places = draw.sample(range(NUM_VARIABLES), NUM_CHOICES)
    wrong = tuple(SEPARATOR.join([*asked[:place], other[place], *asked[place + 1 :]]) for place in places)
    right, decoys = _chain(asked, value), _chain(other, other_value)
    return Riddle(question, (SEPARATOR.join(asked),), right, decoys, wrong, parts=tuple(asked))


def _chain(names: Sequence[str], value: str) -> tuple[str, ...]:
    first = f"The variable {names[0]} is set to {value}."
    handed = (f"The variable {name} is set to the value of {last}." for last, name in pairwise(names))
    return (first, *handed)


def _names(draw: Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choices(ascii_uppercase, k=_NAME_LETTERS))] = None
    return list(names)
