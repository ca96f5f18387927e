"""What stands around the passages: instruction, earlier turns and question, in the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from epic_rag.model.tokens import TextTokenizer

INSTRUCTION = (
    "You answer questions about the passages you are given. Use only what they say, and answer in one short sentence. "
    "If they do not hold the answer, say that you do not know."
)
_PASSAGES, _QUESTION = "\ue000passages\ue001", "\ue000question\ue001"
"""Where passages and question go."""
_USER = f"Passages:\n\n{_PASSAGES}Question: {_QUESTION}"
"""What the user's message is made of."""
_ANSWER = "\n\nAnswer:"
"""Behind the question, for models without a chat template."""
_JOINT = "\n\n"
_KNOWN_ENDS = 8
"""Latest turns after which KV is looked for: a conversation goes on from its last turn, or a few before it."""

Said = tuple[str, str]
"""Role, and what was said."""


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """What stands around the passages, as token ids.

    Attributes:
        prefix_ids: before the first passage; the same for every question.
        middle_ids: between the last passage and the question.
        tail_ids: after the question.
        beginnings: in a conversation, the token ids of prompts' beginnings whose KV may be stored, longest first: as
            far as each earlier answer, and at last the prefix without any turn, which begins alike.
    """

    prefix_ids: tuple[int, ...]
    middle_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]
    beginnings: tuple[tuple[int, ...], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens around passages and question."""
        return len(self.prefix_ids) + len(self.middle_ids) + len(self.tail_ids)

    def suffix(self, question_ids: Sequence[int]) -> tuple[int, ...]:
        """Token ids of everything behind the passages."""
        return (*self.middle_ids, *question_ids, *self.tail_ids)


@lru_cache(maxsize=8)
def prompt_frame(tokenizer: TextTokenizer, instruction: str = INSTRUCTION) -> PromptFrame:
    """The model's chat template around passages and question.

    The instruction is the system message, or the head of the user's where the template knows no system role; a model
    without a template gets plain text.
    """
    return conversation_frame(tokenizer, (), None, instruction)


def conversation_frame(
    tokenizer: TextTokenizer, turns: Sequence[Said], system: str | None = None, instruction: str | None = INSTRUCTION
) -> PromptFrame:
    """The chat template around earlier turns, passages and question; plain text for a model that has none.

    What was said is tokenised apart from the template, so that nobody's text becomes a control token.

    Args:
        tokenizer: of the model.
        turns: role (`user` or `assistant`, alternating) and text; a last one of the user's stands at the head of the
            question's message.
        system: replaces the instruction; somebody's text.
        instruction: our own text; None: an ordinary chat, where the user's message is the question and nothing else.
    """
    marks = tuple(f"\ue000{number}\ue001" for number in range(len(turns) + (system is not None)))
    head = instruction if system is None else marks[0]
    said = [*([] if system is None else [system]), *(words for _, words in turns)]
    spoken = [(role, mark) for (role, _), mark in zip(turns, marks[len(marks) - len(turns) :], strict=True)]
    user = f"{_PASSAGES}{_QUESTION}" if instruction is None else _USER
    text, prefix_ids = _rendered(tokenizer, head, spoken, user), []
    if text is None:
        text, prefix_ids = _plain(head, spoken, user), list(tokenizer.bos_ids)
    ends = []
    for number, (mark, words) in enumerate(zip(marks, said, strict=True)):
        before, text = text.split(mark, 1)
        prefix_ids += [*tokenizer.encode_template(before), *tokenizer.encode(words)]
        if number >= len(marks) - len(turns) and spoken[number - len(marks)][0] == "assistant":
            ends.append(tuple(prefix_ids))
    before, rest = text.split(_PASSAGES)
    middle, tail = rest.split(_QUESTION)
    prefix_ids += tokenizer.encode_template(before)
    beginnings = ends[: -_KNOWN_ENDS - 1 : -1]
    if turns:
        beginnings.append(conversation_frame(tokenizer, (), system, instruction).prefix_ids)
    return PromptFrame(
        tuple(prefix_ids),
        tuple(tokenizer.encode_template(middle)),
        tuple(tokenizer.encode_template(tail)),
        tuple(filter(None, beginnings)),
    )


def _rendered(tokenizer: TextTokenizer, head: str | None, spoken: Sequence[Said], user: str) -> str | None:
    """The template's text with a mark for everything said, each once and in order; None: it cannot do that."""
    messages = [{"role": role, "content": mark} for role, mark in spoken]
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += _JOINT + user
    else:
        messages.append({"role": "user", "content": user})
    marks = [*(mark for _, mark in spoken), _PASSAGES, _QUESTION]
    for variant in [messages] if head is None else _variants(head, messages):
        try:
            text = tokenizer.render(variant)
        except Exception:  # noqa: BLE001, S112 - templates raise what they like when they refuse a role
            continue
        if text is None or _is_whole(text, head or "", marks):
            return text
    return None


def _variants(head: str, messages: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Places for the system's text: its own message, else the user's in front of a greeting, else the first user's."""
    joined = [dict(message) for message in messages]
    first = next(message for message in joined if message["role"] == "user")
    first["content"] = f"{head}{_JOINT}{first['content']}"
    begun = [[{"role": "user", "content": head}, *messages]] if messages[0]["role"] == "assistant" else []
    return [[{"role": "system", "content": head}, *messages], *begun, joined]


def _is_whole(text: str, head: str, marks: Sequence[str]) -> bool:
    """Whether the head is there, which some templates drop without a word, and every mark, once and in order."""
    places = [text.find(mark) for mark in marks]
    in_order = -1 not in places and places == sorted(places) and all(text.count(mark) == 1 for mark in marks)
    is_first = not marks or text.find(head) < places[0]
    return in_order and head in text and is_first


def _plain(head: str | None, spoken: Sequence[Said], user: str) -> str:
    lines = "" if head is None else f"{head}{_JOINT}"
    lines += "".join(f"{'Question' if role == 'user' else 'Answer'}: {mark}{_JOINT}" for role, mark in spoken)
    return f"{lines}{user if user == _USER else f'Question: {user}'}{_ANSWER}"
