"""Items as token ids: the prompt with and without passages, and what is forced behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epic_rag.errors import PromptError
from epic_rag.evaluation.item import EvalItem
from epic_rag.evaluation.records import digest_of
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt, PromptFrame


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """One item.

    Attributes:
        item: the item.
        content: 12 hex digits of what it asks.
        prompt: with its passages; the question is the suffix.
        bare: without them.
        gold: token ids of the answer that is forced, A of them.
        choices: token ids of the wrong answers.
    """

    item: EvalItem
    content: str
    prompt: Prompt
    bare: Prompt
    gold: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]

    @property
    def spare_tokens(self) -> int:
        """Room for the longest continuation."""
        return max(self.item.max_answer_tokens, len(self.gold), *map(len, self.choices), 0)


def prepare(model: LanguageModel, frame: PromptFrame, items: Sequence[EvalItem]) -> list[PreparedItem]:
    """Tokenise items.

    Raises:
        PromptError: an item has no answer in tokens, or does not fit the model's window; says which and the mend.
    """
    prepared = [_prepare(model, frame, item) for item in items]
    for one in prepared:
        if not one.gold or not all(one.choices):
            raise PromptError(f"item '{one.item.id}': an answer without any token; remove the item, or give it a text")
    needed = [one.prompt.num_tokens + one.spare_tokens for one in prepared]
    too_long = [one.item.id for one, num_tokens in zip(prepared, needed, strict=True) if num_tokens > model.window]
    if too_long:
        raise PromptError(
            f"{len(too_long)} of {len(items)} items do not fit the model's window of {model.window} tokens, the "
            f"longest takes {max(needed)} (first: '{too_long[0]}'): use fewer or shorter passages, or another model"
        )
    return prepared


def _prepare(model: LanguageModel, frame: PromptFrame, item: EvalItem) -> PreparedItem:
    encode = model.tokenizer.encode
    suffix = frame.suffix(encode(item.question))
    chunks = tuple(filter(None, (tuple(encode(passage)) for passage in item.passages)))
    gold, *choices = (tuple(encode(_behind(model, frame, text))) for text in (item.answers[0], *item.choices))
    return PreparedItem(
        item,
        digest_of([item.question, item.answers, item.passages, item.choices, item.max_answer_tokens]),
        Prompt(frame.prefix_ids, chunks, suffix),
        Prompt(frame.prefix_ids, (), suffix),
        gold,
        tuple(choices),
    )


def _behind(model: LanguageModel, frame: PromptFrame, answer: str) -> str:
    """The answer as it goes on from the prompt: with a space where that ends in a word, as without a chat template."""
    end = model.tokenizer.decode(frame.tail_ids)
    return answer if not end or end[-1].isspace() else f" {answer}"
