"""Items with sentences hidden in a haystack: what the generated tasks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.tasks.finish import finish
from epic_rag.evaluation.tasks.haystack import Haystack, num_tokens_of, open_haystack, plant, rising_depths
from epic_rag.evaluation.tasks.request import Request

DEFAULT_COUNT = 100
_LEAST_TOKENS = 64  # of haystack around the needles
_LEAST_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Riddle:
    """A question whose answer is planted.

    Attributes:
        question: what is asked.
        answers: the right answer, and other ways to write it.
        needles: sentences that tell it, in the order in which they are read.
        decoys: sentences of the same form that tell something else.
        choices: three wrong answers.
        depth: where its only needle goes, 0 to 1; None: anywhere.
        parts: what an answer has to name, where that is several things.
    """

    question: str
    answers: tuple[str, ...]
    needles: tuple[str, ...]
    decoys: tuple[str, ...]
    choices: tuple[str, ...]
    depth: float | None = None
    parts: tuple[str, ...] = ()


def planted(request: Request, make: Callable[[Random], Riddle]) -> Task:
    """The task of riddles in a haystack: passages and question have, together, the tokens that the spec says."""
    num_tokens = request.num_tokens()
    haystack = open_haystack(request)
    return finish(request, "retrieve", _items(request, haystack, num_tokens, make), haystack.corpus)


def _items(
    request: Request, haystack: Haystack, num_tokens: int, make: Callable[[Random], Riddle]
) -> Iterator[EvalItem]:
    for number in count() if request.count else islice(count(), DEFAULT_COUNT):
        name = f"{request.spec}/{haystack.label}/{request.seed}/{number}"
        if request.wants(name):
            draw = request.draw(name)
            yield _item(name, haystack, num_tokens, make(draw), draw)


def _item(name: str, haystack: Haystack, num_tokens: int, riddle: Riddle, draw: Random) -> EvalItem:
    encode = haystack.encode
    needles = _mixed(riddle, draw)
    room = num_tokens - len(encode(riddle.question)) - num_tokens_of(encode, needles)
    if room < _LEAST_TOKENS:
        raise ConfigError(
            f"{name}: {num_tokens} tokens leave {room} for the haystack; ask for at least "
            f"{num_tokens - room + _LEAST_TOKENS}"
        )
    depths = rising_depths(draw, len(needles)) if riddle.depth is None else [riddle.depth]
    texts, where = plant(haystack.draw(draw, room), list(zip(depths, needles, strict=True)))
    told = set(riddle.needles)
    gold = sorted({index for index, sentence in zip(where, needles, strict=True) if sentence in told})
    room_for_answer = max(_LEAST_ANSWER_TOKENS, 2 * len(encode(riddle.answers[0])))
    return EvalItem(
        name, riddle.question, riddle.answers, texts, tuple(gold), riddle.choices, room_for_answer, riddle.parts
    )


def _mixed(riddle: Riddle, draw: Random) -> Sequence[str]:
    """Needles and decoys among each other; each of the two keeps its order."""
    waiting = [list(riddle.needles), list(riddle.decoys)]
    kinds = draw.sample([0] * len(riddle.needles) + [1] * len(riddle.decoys), len(riddle.needles) + len(riddle.decoys))
    return [waiting[kind].pop(0) for kind in kinds]
