"""The prompt as token ids: prefix · passages · suffix, cut so that a passage's ids never depend on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epic_rag.errors import QuestionTooLongError
from epic_rag.frame import INSTRUCTION, PromptFrame, prompt_frame

__all__ = ["INSTRUCTION", "Prompt", "PromptFrame", "build_prompt", "num_shared", "prompt_frame"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question's prompt: `prefix · chunks · suffix`, N tokens in all; `beginnings` as in `PromptFrame`."""

    prefix_ids: tuple[int, ...]
    chunk_ids: tuple[tuple[int, ...], ...]
    suffix_ids: tuple[int, ...]
    beginnings: tuple[tuple[int, ...], ...] = ()

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

    @property
    def num_pinned(self) -> int:
        """First tokens that stay whatever the budget: the prefix, in a conversation without the turns."""
        return num_shared(self.prefix_ids, self.beginnings[-1]) if self.beginnings else len(self.prefix_ids)


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def build_prompt(
    frame: PromptFrame, question_ids: Sequence[int], chunk_ids: Sequence[tuple[int, ...]], room_tokens: int
) -> tuple[Prompt, tuple[int, ...]]:
    """Put the passages between prefix and suffix, the best one last, next to the question.

    Small models read best what stands near the question (benchmarks/results/answers.json). A passage that does not fit
    is left out whole; smaller ones of a lower rank may still have room.

    Args:
        frame: what stands around them.
        question_ids: the question's token ids.
        chunk_ids: the passages' token ids, best first.
        room_tokens: largest N: the context window less the answer.

    Returns:
        The prompt, and the ranks from 0 of the passages in it, best first.

    Raises:
        QuestionTooLongError: when there is no room even without passages.
    """
    suffix = frame.suffix(question_ids)
    room = room_tokens - len(frame.prefix_ids) - len(suffix)
    if room < 0:
        raise QuestionTooLongError(
            f"the question has {len(question_ids)} tokens; beside the instruction and the answer the model has room "
            f"for {max(0, room + len(question_ids))}. Ask a shorter question, leave the answer less room (max_tokens), "
            "or use a model with a larger window"
        )
    fitting = []
    for rank, chunk in enumerate(chunk_ids):
        if len(chunk) <= room:
            room -= len(chunk)
            fitting.append(rank)
    chunks = tuple(chunk_ids[rank] for rank in reversed(fitting))
    return Prompt(frame.prefix_ids, chunks, suffix, frame.beginnings), tuple(fitting)
