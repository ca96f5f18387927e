"""What a task asks: questions over passages, with the answers that are known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

Half = Literal["tune", "report"]
Kind = Literal["answer", "summary", "retrieve"]


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One question over passages.

    Attributes:
        id: unique in its task, and the same for the same question over runs and machines.
        question: what is asked.
        answers: the answers known, at least one; the first is the one that is forced.
        passages: text as it stands in the prompt, each ending with a blank line, in the prompt's order: the last stands
            next to the question.
        gold: which passages hold the answer, ascending; empty where that is not known.
        choices: three wrong answers, for rank-4 accuracy; empty where it makes no sense.
        max_answer_tokens: room for a greedy answer.
        parts: what an answer has to name, each counted by itself; empty where an answer is right or not.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[str, ...]
    gold: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    max_answer_tokens: int = 16
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A set of items, as `open_task` makes it.

    Attributes:
        name: as it was asked for, such as `xquad:8`.
        kind: what an answer is: a few words out of a passage, a summary, or planted values to be found again.
        items: the items, in an order that depends on the seed alone.
        corpus: distinct passages that ingest would see, from which warm prefixes are drawn; for a generated task those
            of the haystack, without what was planted.
    """

    name: str
    kind: Kind
    items: tuple[EvalItem, ...]
    corpus: tuple[str, ...]


def half(item_id: str) -> Half:
    """The half an item belongs to, by a digest of its id: what is tuned on one half is reported on the other."""
    return "tune" if hashlib.sha256(item_id.encode()).digest()[-1] % 2 == 0 else "report"
