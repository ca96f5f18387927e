"""RULER-style retrieval: codes of things, hidden in a haystack.

The tasks and their sizes (four keys, four values, four queries) are RULER's; words and sentences are our own. Answers
of several codes are joined by ", ": in the order of reading for `ruler-multivalue`, of asking for `ruler-multiquery`.

Source: Hsieh et al., "RULER: What's the real context size of your long-context language models?", arXiv 2404.06654.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from epic_rag.evaluation.item import Task
from epic_rag.evaluation.tasks.finish import NUM_CHOICES
from epic_rag.evaluation.tasks.planted import Riddle, planted
from epic_rag.evaluation.tasks.request import Request

NUM_MANY = 4
SEPARATOR = ", "
_ADJECTIVES = (
    "amber", "brass", "crimson", "dappled", "emerald", "frosted", "gilded", "hollow", "ivory", "jagged", "knotted",
    "lacquered", "marbled", "nickel", "ochre", "painted", "quilted", "rusty", "silver", "tawny", "umber", "velvet",
    "woven", "yellow",
)  # fmt: skip
_NOUNS = (
    "anchor", "barrel", "compass", "drum", "easel", "flute", "goblet", "hammock", "inkwell", "kettle", "ladder",
    "mirror", "necklace", "oar", "pulley", "quiver", "rudder", "saddle", "teapot", "urn", "violin", "wagon",
    "xylophone", "zither",
)  # fmt: skip


def single(request: Request) -> Task:
    """`ruler-single:TOKENS`: one code is hidden and asked for; wrong choices stand nowhere."""
    request.no_more_arguments(1)
    return planted(request, lambda draw: _ask_one(draw, num_things=1))


def multi_key(request: Request) -> Task:
    """`ruler-multikey:TOKENS`: codes of four things are hidden, one is asked for, the others are the wrong choices."""
    request.no_more_arguments(1)
    return planted(request, lambda draw: _ask_one(draw, num_things=NUM_MANY))


def multi_query(request: Request) -> Task:
    """`ruler-multiquery:TOKENS`: codes of four things are hidden and asked for; wrong choices mix up which is whose."""
    request.no_more_arguments(1)
    return planted(request, _ask_all)


def multi_value(request: Request) -> Task:
    """`ruler-multivalue:TOKENS`: one thing has four codes; each wrong choice has one code that stands nowhere."""
    request.no_more_arguments(1)
    return planted(request, _ask_every_value)


def _ask_one(draw: Random, num_things: int) -> Riddle:
    things, codes = draw_things(draw, num_things), draw_codes(draw, NUM_MANY)
    told = [_tell(thing, code) for thing, code in zip(things, codes, strict=False)]
    question = f"What is the secret code of the {things[0]}? Answer with the code alone."
    return Riddle(question, (codes[0],), (told[0],), tuple(told[1:]), tuple(codes[1:]))


def _ask_all(draw: Random) -> Riddle:
    things, codes = draw_things(draw, NUM_MANY), draw_codes(draw, NUM_MANY)
    told = [_tell(thing, code) for thing, code in zip(things, codes, strict=True)]
    asked = f"{', the '.join(things[:-1])} and the {things[-1]}"
    question = f"What are the secret codes of the {asked}? Answer with the codes alone, in this order."
    needles = tuple(draw.sample(told, len(told)))
    return Riddle(question, (SEPARATOR.join(codes),), needles, (), mixed_up(draw, codes), parts=tuple(codes))


def _ask_every_value(draw: Random) -> Riddle:
    (thing,), codes = draw_things(draw, 1), draw_codes(draw, NUM_MANY + NUM_CHOICES)
    right, strangers = codes[:NUM_MANY], codes[NUM_MANY:]
    question = f"What are all {NUM_MANY} secret codes of the {thing}? List them in the order of the text."
    wrong = []
    for stranger in strangers:
        place = draw.randrange(NUM_MANY)
        wrong.append(SEPARATOR.join([*right[:place], stranger, *right[place + 1 :]]))
    needles = tuple(_tell(thing, code) for code in right)
    return Riddle(question, (SEPARATOR.join(right),), needles, (), tuple(wrong), parts=tuple(right))


def _tell(thing: str, code: str) -> str:
    return f"A secret code of the {thing} is {code}."


def draw_things(draw: Random, count: int) -> list[str]:
    """Different things, no two of the same adjective or noun."""
    pairs = zip(draw.sample(_ADJECTIVES, count), draw.sample(_NOUNS, count), strict=True)
    return [f"{adjective} {noun}" for adjective, noun in pairs]


def draw_codes(draw: Random, count: int) -> list[str]:
    """Different codes of seven digits."""
    return [str(code) for code in draw.sample(range(1_000_000, 10_000_000), count)]


def mixed_up(draw: Random, parts: Sequence[str]) -> tuple[str, ...]:
    """Three wrong orders of at least three parts, joined."""
    found = [list(parts)]
    while len(found) <= NUM_CHOICES:
        order = draw.sample(parts, len(parts))
        if order not in found:
            found.append(order)
    return tuple(SEPARATOR.join(order) for order in found[1:])
