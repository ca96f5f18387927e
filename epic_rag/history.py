"""Conversations: earlier turns as an exact beginning of the prompt, in front of the passages of the new question.

`system · turn 1 · turn 2 · … · passages · question`. Of earlier turns only the texts of questions and answers are told
again, without their passages, so the beginning of each question's prompt extends that of the question before it. KV at
the beginning of a prompt does not depend on what follows: it is stored as it is, and only the new turn is computed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from epic_rag.errors import ConfigError
from epic_rag.frame import INSTRUCTION, PromptFrame, conversation_frame
from epic_rag.loading.document import clean_text
from epic_rag.model.tokens import TextTokenizer

Role = Literal["user", "assistant", "system"]
_ROLES = ("user", "assistant", "system")
_JOINT = "\n\n"
_SHORT_WORDS = 5
"""A question of so few words ("And on Sundays?") is looked up together with the one before it."""
_UNSPACED = re.compile(
    "[\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]{1,2}"
    "|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17d3]{1,4}"
)
"""About a word of a script without spaces: two characters of Han and kana; four of Thai, Lao, Khmer and Myanmar."""
_SHARE = 2
"""Earlier turns get at most one part in so many of the room, so that passages fit too."""
_STEPS = 4
"""Turns go in steps of a quarter of their room, not one by one: the beginning stays the same for several questions."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody said.

    Attributes:
        role: `user`, `assistant`, or `system`, whose texts replace the instruction.
        text: without the passages that it may have been answered from.
    """

    role: Role
    text: str

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: an unknown role, or a text that is none.
        """
        if self.role not in _ROLES:
            raise ConfigError(f"a turn's role must be one of {', '.join(_ROLES)}, got {self.role!r}")
        if not isinstance(self.text, str):
            raise ConfigError(f"a turn's text must be a string, got {type(self.text).__name__}")


def tidy(history: Sequence[Turn]) -> tuple[str | None, tuple[Turn, ...]]:
    """The system's text (None: there is none) and the turns of user and assistant, alternating.

    Empty turns go, turns of one role in a row become one: many templates take the roles in turn only.
    """
    said = [Turn(turn.role, text) for turn in history if (text := clean_text(turn.text.strip()))]
    system = _JOINT.join(turn.text for turn in said if turn.role == "system")
    rows = groupby((turn for turn in said if turn.role != "system"), key=lambda turn: turn.role)
    return system or None, tuple(Turn(role, _JOINT.join(turn.text for turn in row)) for role, row in rows)


def search_text(question: str, history: Sequence[Turn]) -> str:
    """What to look up for a question: itself, behind the user's last turn where it is too short to stand alone."""
    asked = [turn.text.strip() for turn in history if turn.role == "user" and turn.text.strip()]
    return f"{asked[-1]} {question}" if asked and _num_words(question) <= _SHORT_WORDS else question


def _num_words(text: str) -> int:
    """Words between spaces; where a script has none, about as many as are in its characters."""
    return sum(max(1, len(_UNSPACED.findall(word))) for word in text.split())


def fitting_frame(
    tokenizer: TextTokenizer, history: Sequence[Turn], room_tokens: int, instruction: str | None = INSTRUCTION
) -> tuple[PromptFrame, str]:
    """The frame around passages and question, with as many of the latest turns as have room.

    Args:
        tokenizer: of the model.
        history: earlier turns, oldest first.
        room_tokens: for the whole prompt less the question; half of what the bare frame leaves is for the turns.
        instruction: the system message where no turn is the system's; None: an ordinary chat, see below.

    Returns:
        The frame, and a warning in words; empty when every turn is in it.
    """
    system, turns = tidy(history)
    bare = conversation_frame(tokenizer, (), system, instruction)
    room = max(0, room_tokens - bare.num_tokens) // _SHARE
    said = [(turn.role, turn.text) for turn in turns]
    frame, gone = conversation_frame(tokenizer, said, system, instruction), 0
    if frame.num_tokens - bare.num_tokens > room:
        gone = _num_left_out(_sizes(tokenizer, turns, frame.num_tokens - bare.num_tokens), room)
        while 0 < gone < len(turns) and turns[gone].role != "user":  # an answer without its question
            gone += 1
        frame = conversation_frame(tokenizer, said[gone:], system, instruction)
    if not gone:
        return frame, ""
    return frame, f"{gone} of {len(turns)} earlier turns do not fit the context window: the oldest were left out"


def _sizes(tokenizer: TextTokenizer, turns: Sequence[Turn], num_tokens: int) -> list[int]:
    """Tokens of each turn, its even share of the template's included; `num_tokens`: of all."""
    bare = [len(tokenizer.encode(turn.text)) for turn in turns]
    share = max(0, -(-(num_tokens - sum(bare)) // len(turns)))
    return [size + share for size in bare]


def _num_left_out(sizes: Sequence[int], room_tokens: int) -> int:
    """How many of the oldest turns go, in steps, so that what remains fits."""
    excess = sum(sizes) - room_tokens
    if excess <= 0:
        return 0
    step = max(1, room_tokens // _STEPS)
    least, left_out, gone = -(-excess // step) * step, 0, 0
    for size in sizes:
        if left_out >= least:
            break
        left_out, gone = left_out + size, gone + 1
    return gone
