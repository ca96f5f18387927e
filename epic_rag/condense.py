"""A follow-up question made to stand alone, by the same model, so that it can be looked up and answered by itself."""

from __future__ import annotations

from collections.abc import Sequence

from epic_rag.decode import DecodeOptions, decode
from epic_rag.engine import Engine
from epic_rag.frame import conversation_frame
from epic_rag.history import Turn, tidy
from epic_rag.link import link
from epic_rag.loading.document import clean_text
from epic_rag.prompt import build_prompt
from epic_rag.selectors import FullSelector

_TASK = (
    "Rewrite the last question so that it can be understood without the conversation: put in the names and things it "
    "refers to. Write nothing but the question."
)
_MAX_TOKENS = 64
_SPEAKERS = {"user": "User", "assistant": "Assistant"}


def condense(engine: Engine, question: str, history: Sequence[Turn]) -> str:
    """The question in words that need no conversation, decoded greedily; as it is where there is no conversation.

    Nothing of it is stored: its KV is of this one question. The oldest turns are left out where the window is short.

    Args:
        engine: its model writes the question.
        question: the last one.
        history: earlier turns, oldest first.
    """
    model, (_, turns) = engine.model, tidy(history)
    if not turns or not question.strip():
        return question
    frame = conversation_frame(model.tokenizer, (), None, None)
    room = model.window - _MAX_TOKENS
    ids = model.tokenizer.encode(_told(question, turns))
    while turns and frame.num_tokens + len(ids) > room:
        turns = turns[1:]
        ids = model.tokenizer.encode(_told(question, turns))
    prompt, _ = build_prompt(frame, ids, [], room)
    linked = link(model, prompt, [], FullSelector(), spare_tokens=_MAX_TOKENS)
    pieces = decode(model, linked.cache, linked.logits[-1], DecodeOptions(_MAX_TOKENS))
    lines = "".join(piece.text for piece in pieces).strip().splitlines()
    return lines[0].strip() if lines and lines[0].strip() else question


def _told(question: str, turns: Sequence[Turn]) -> str:
    talk = "\n".join(f"{_SPEAKERS[turn.role]}: {turn.text}" for turn in turns)
    return f"{_TASK}\n\nConversation:\n{talk}\n\nLast question: {clean_text(question.strip())}"
