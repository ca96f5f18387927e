"""A follow-up question made to stand alone, by the same model, so that it can be looked up and answered by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epic_rag.decode import DecodeOptions, decode
from epic_rag.engine import Engine
from epic_rag.frame import conversation_frame
from epic_rag.history import Turn, tidy
from epic_rag.link import link
from epic_rag.loading.document import clean_text
from epic_rag.model.tokens import TextTokenizer
from epic_rag.prompt import build_prompt
from epic_rag.selectors import FullSelector

_TASK = (
    "Rewrite the last question so that it can be understood without the conversation: put in the names and things it "
    "refers to. Write nothing but the question."
)
_MAX_TOKENS = 64
_SPEAKERS = {"user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True)
class Condensed:
    """A question that stands alone, and what it cost.

    Attributes:
        text: the question.
        prompt_tokens: tokens that the model read for it.
        answer_tokens: tokens that it wrote.
    """

    text: str
    prompt_tokens: int = 0
    answer_tokens: int = 0


def condense(engine: Engine, question: str, history: Sequence[Turn]) -> Condensed:
    """The question in words that need no conversation, decoded greedily; as it is where there is no conversation.

    Nothing of it is stored: its KV is of this one question. The oldest turns are left out where the window is short.

    Args:
        engine: its model writes the question.
        question: the last one.
        history: earlier turns, oldest first.
    """
    model, (_, turns) = engine.model, tidy(history)
    if not turns or not question.strip():
        return Condensed(question)
    frame = conversation_frame(model.tokenizer, (), None, None)
    room = model.window - _MAX_TOKENS
    ids = _fitting(model.tokenizer, question, turns, room - frame.num_tokens)
    prompt, _ = build_prompt(frame, ids, [], room)
    linked = link(model, prompt, [], FullSelector(), spare_tokens=_MAX_TOKENS)
    pieces = list(decode(model, linked.cache, linked.logits[-1], DecodeOptions(_MAX_TOKENS)))
    lines = "".join(piece.text for piece in pieces).strip().splitlines()
    text = lines[0].strip() if lines and lines[0].strip() else question
    return Condensed(text, prompt.num_tokens, pieces[-1].num_tokens if pieces else 0)


def _fitting(tokenizer: TextTokenizer, question: str, turns: Sequence[Turn], room_tokens: int) -> list[int]:
    """Token ids of the task with as many of the latest turns as have room; no turn is sized twice."""
    room, first = room_tokens - len(tokenizer.encode(_told(question, ()))), len(turns)
    while first and (room := room - len(tokenizer.encode(_line(turns[first - 1]) + "\n"))) >= 0:
        first -= 1
    ids = tokenizer.encode(_told(question, turns[first:]))
    while first < len(turns) and len(ids) > room_tokens:  # tokens of the parts may be fewer than of the whole
        first += 1
        ids = tokenizer.encode(_told(question, turns[first:]))
    return ids


def _line(turn: Turn) -> str:
    return f"{_SPEAKERS[turn.role]}: {turn.text}"


def _told(question: str, turns: Sequence[Turn]) -> str:
    talk = "\n".join(map(_line, turns))
    return f"{_TASK}\n\nConversation:\n{talk}\n\nLast question: {clean_text(question.strip())}"
