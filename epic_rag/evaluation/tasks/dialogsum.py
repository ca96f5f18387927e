"""dialogsum: summarise one of four dialogues.

A summary of one dialogue alone would be a context of one short chunk, which is no test of chunks that were encoded
apart. So four dialogues of different topics stand in the prompt, each under its topic, a long one in passages of whole
turns, and the question names the topic of one. The wrong choices are the summaries of the other three: all speak of
something that was read.

Source: Chen et al., "DialogSum", arXiv 2105.06762.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.tasks.finish import NUM_CHOICES, finish
from epic_rag.evaluation.tasks.passages import Cutter, Passage
from epic_rag.evaluation.tasks.request import Request
from epic_rag.evaluation.tasks.rows import data_file, read_rows

PASSAGE_WORDS = 150
MAX_ANSWER_TOKENS = 64
_QUESTION = "Summarise the dialogue under the heading “{topic}” in one or two sentences."


@dataclass(frozen=True, slots=True)
class _Dialogue:
    id: str
    topic: str
    turns: tuple[str, ...]
    summary: str

    def passages(self, gold: bool | None = None) -> Iterator[Passage]:
        """Whole turns in passages of about `PASSAGE_WORDS` words, of about the same length."""
        words = [len(turn.split()) for turn in self.turns]
        num_passages = max(1, round(sum(words) / PASSAGE_WORDS))
        parts: list[list[str]] = [[] for _ in range(num_passages)]
        read = 0
        for turn, length in zip(self.turns, words, strict=True):
            middle = read + length / 2
            parts[min(num_passages - 1, int(middle * num_passages / sum(words)))].append(turn)
            read += length
        return (Passage(self.topic, "\n".join(part), gold) for part in parts if part)


def dialogsum(request: Request) -> Task:
    """`dialogsum`: four dialogues in an order that the seed draws, gold every passage of the one that is asked for."""
    request.no_more_arguments(0)
    dialogues = _read(request)
    cutter = Cutter.for_request(request)
    corpus = cutter.corpus(passage for dialogue in dialogues for passage in dialogue.passages())
    return finish(request, "summary", _items(request, dialogues, cutter), corpus)


def _items(request: Request, dialogues: Sequence[_Dialogue], cutter: Cutter) -> Iterator[EvalItem]:
    for asked in request.draw("dialogues").sample(dialogues, len(dialogues)):
        draw = request.draw(asked.id)
        others = _others(asked, draw.sample(dialogues, len(dialogues)))
        if len(others) < NUM_CHOICES:
            raise ConfigError(f"{request.spec} needs dialogues of {NUM_CHOICES + 1} different topics")
        shown = draw.sample([asked, *others], len(others) + 1)
        passages = [passage for one in shown for passage in one.passages(gold=one is asked)]
        texts, gold = cutter.prompt(passages, (asked.summary,))
        question = _QUESTION.format(topic=asked.topic)
        choices = tuple(other.summary for other in others)
        yield EvalItem(asked.id, question, (asked.summary,), texts, gold, choices, MAX_ANSWER_TOKENS)


def _others(asked: _Dialogue, drawn: Sequence[_Dialogue]) -> list[_Dialogue]:
    """The first dialogues whose topics and summaries differ from each other's and from those of the one asked for."""
    found = [asked]
    for one in drawn:
        if all(one.topic != seen.topic and one.summary.casefold() != seen.summary.casefold() for seen in found):
            found.append(one)
        if len(found) == NUM_CHOICES + 1:
            break
    return found[1:]


def _read(request: Request) -> list[_Dialogue]:
    rows = read_rows(data_file(request, "dialogsum", "dev120.jsonl"))
    return [
        _Dialogue(
            row.text("fname"),
            row.text("topic"),
            tuple(line.strip() for line in row.text("dialogue").splitlines() if line.strip()),
            row.text("summary").strip(),
        )
        for row in rows
    ]
