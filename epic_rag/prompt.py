"""The prompt as token ids: prefix · passages · suffix, cut so that a passage's ids never depend on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from epic_rag.errors import QuestionTooLongError
from epic_rag.model.tokens import TextTokenizer

INSTRUCTION = (
    "You answer questions about the passages you are given. Use only what they say, and answer in one short sentence. "
    "If they do not hold the answer, say that you do not know."
)
_PASSAGES, _QUESTION = "\ue000passages\ue001", "\ue000question\ue001"
_USER = f"Passages:\n\n{_PASSAGES}Question: {_QUESTION}"
_PLAIN = f"{INSTRUCTION}\n\n{_USER}\n\nAnswer:"
"""For models without a chat template."""


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """What stands around the passages, as token ids.

    Attributes:
        prefix_ids: before the first passage; the same for every question.
        middle_ids: between the last passage and the question.
        tail_ids: after the question.
    """

    prefix_ids: tuple[int, ...]
    middle_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]

    def suffix(self, question_ids: Sequence[int]) -> tuple[int, ...]:
        """Token ids of everything behind the passages."""
        return (*self.middle_ids, *question_ids, *self.tail_ids)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question's prompt: `prefix · chunks · suffix`, N tokens in all."""

    prefix_ids: tuple[int, ...]
    chunk_ids: tuple[tuple[int, ...], ...]
    suffix_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.prefix_ids) + sum(map(len, self.chunk_ids)) + len(self.suffix_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All N token ids in order."""
        return (*self.prefix_ids, *(token for chunk in self.chunk_ids for token in chunk), *self.suffix_ids)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position of every chunk's first token."""
        starts, position = [], len(self.prefix_ids)
        for chunk in self.chunk_ids:
            starts.append(position)
            position += len(chunk)
        return tuple(starts)

    @property
    def suffix_start(self) -> int:
        """Position of the suffix's first token."""
        return self.num_tokens - len(self.suffix_ids)


@lru_cache(maxsize=8)
def prompt_frame(tokenizer: TextTokenizer, instruction: str = INSTRUCTION) -> PromptFrame:
    """The model's chat template around passages and question.

    The instruction is the system message, or the head of the user's where the template knows no system role; a model
    without a template gets plain text.
    """
    text = _rendered(tokenizer, instruction)
    if text is None:
        text, begin = _PLAIN.replace(INSTRUCTION, instruction), tokenizer.bos_ids
    else:
        begin = []
    prefix, rest = text.split(_PASSAGES)
    middle, tail = rest.split(_QUESTION)
    prefix_ids = (*begin, *tokenizer.encode_template(prefix))
    return PromptFrame(prefix_ids, tuple(tokenizer.encode_template(middle)), tuple(tokenizer.encode_template(tail)))


def _rendered(tokenizer: TextTokenizer, instruction: str) -> str | None:
    separate = [{"role": "system", "content": instruction}, {"role": "user", "content": _USER}]
    joined = [{"role": "user", "content": f"{instruction}\n\n{_USER}"}]
    for messages in (separate, joined):
        try:
            text = tokenizer.render(messages)
        except Exception:  # noqa: BLE001, S112 - templates raise what they like when they know no system role
            continue
        if text is None or instruction in text:  # some templates drop the system message without a word
            return text
    return None


def build_prompt(
    frame: PromptFrame, question_ids: Sequence[int], chunk_ids: Sequence[tuple[int, ...]], room_tokens: int
) -> tuple[Prompt, int]:
    """Put the passages between prefix and suffix, the best one last, next to the question.

    Small models read best what stands near the question (benchmarks/results/answers.json). Whole lowest-ranked passages
    are dropped when they do not fit.

    Args:
        frame: what stands around them.
        question_ids: the question's token ids.
        chunk_ids: the passages' token ids, best first.
        room_tokens: largest N: the context window less the answer.

    Returns:
        The prompt, and how many of the passages are in it, best first.

    Raises:
        QuestionTooLongError: when there is no room even without passages.
    """
    suffix = frame.suffix(question_ids)
    room = room_tokens - len(frame.prefix_ids) - len(suffix)
    if room < 0:
        raise QuestionTooLongError(
            f"the question has {len(question_ids)} tokens; beside the instruction and the answer the model has room "
            f"for {max(0, room + len(question_ids))}. Ask a shorter question, or use a model with a larger window"
        )
    fitting = 0
    for chunk in chunk_ids:
        if len(chunk) > room:
            break
        room -= len(chunk)
        fitting += 1
    return Prompt(frame.prefix_ids, tuple(chunk_ids[:fitting][::-1]), suffix), fitting
