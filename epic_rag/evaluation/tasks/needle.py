"""A needle in a haystack: one made-up fact in a plain sentence, at a depth, in any corpus.

Source: the test is Kamradt's (github.com/gkamradt/LLMTest_NeedleInAHaystack); the facts are our own.
"""

from __future__ import annotations

from random import Random

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import Task
from epic_rag.evaluation.tasks.finish import NUM_CHOICES
from epic_rag.evaluation.tasks.planted import Riddle, planted
from epic_rag.evaluation.tasks.request import Request

_NAMES = (
    "Adelmina", "Borvath", "Cassimir", "Dorothea", "Evander", "Fiorenza", "Gustavo", "Hildegund", "Ignatia",
    "Joscelin", "Kasimira", "Leopolda", "Mordechai", "Nepomuk", "Ottoline", "Perpetua", "Quirin", "Rosalba",
    "Sigismund", "Theodora",
)  # fmt: skip
_SURNAMES = (
    "Abbenzeller", "Brockway", "Cavendorp", "Dellacroce", "Ellingboe", "Fennimore", "Grauwolf", "Hollingbury",
    "Ironmonger", "Jessamine", "Klopstock", "Lindqvist",
)  # fmt: skip
_COLOURS = ("blue", "green", "scarlet", "grey", "violet", "orange", "white", "striped")
_OBJECTS = (
    "umbrella", "teapot", "trumpet", "wheelbarrow", "globe", "rocking chair", "suitcase", "sewing machine", "telescope",
    "accordion", "bathtub", "chessboard",
)  # fmt: skip
_EVENTS = (
    "won {it} in a raffle at the harbour fair",
    "traded a goat for {it} on the way to the coast",
    "hid {it} in the attic of the old post office",
    "lost {it} on the night train to the mountains",
    "painted nothing but {it} for eleven years",
    "was left {it} by an aunt who sailed to Lisbon",
)
_QUESTIONS = (
    "What did {who} win in a raffle at the harbour fair?",
    "What did {who} trade a goat for on the way to the coast?",
    "What did {who} hide in the attic of the old post office?",
    "What did {who} lose on the night train to the mountains?",
    "What did {who} paint for eleven years?",
    "What was {who} left by an aunt who sailed to Lisbon?",
)


def needle(request: Request) -> Task:
    """`needle:TOKENS[:DEPTH]`: depth 0 is before all other text, 1 behind it; by default every item draws its own."""
    request.no_more_arguments(2)
    depth = request.argument(1, "a depth from 0 to 1", _depth) if len(request.arguments) > 1 else None
    if depth is not None and request.gold_place is not None:
        raise ConfigError(f"{request.spec} has a depth and gold_place '{request.gold_place}'; give one of them")
    return planted(request, lambda draw: _riddle(draw, depth))


def _depth(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def _riddle(draw: Random, depth: float | None) -> Riddle:
    who = f"{draw.choice(_NAMES)} {draw.choice(_SURNAMES)}"
    event = draw.randrange(len(_EVENTS))
    colours, objects = draw.sample(_COLOURS, NUM_CHOICES + 1), draw.sample(_OBJECTS, NUM_CHOICES + 1)
    right, *wrong = (_with_article(f"{colour} {thing}") for colour, thing in zip(colours, objects, strict=True))
    sentence = f"{who} {_EVENTS[event].format(it=right)}."
    return Riddle(_QUESTIONS[event].format(who=who), (right,), (sentence,), (), tuple(wrong), depth)


def _with_article(thing: str) -> str:
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"
