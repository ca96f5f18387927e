"""Passages as they stand in a prompt: rendered or cut, with the gold ones known and moved where they are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from epic_rag.chunking import CLOSING, Encode, chunk_document
from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem
from epic_rag.evaluation.tasks.request import GoldPlace, Request
from epic_rag.loading.document import SkipSourceError, make_document

_SAYS_NOTHING = frozenset(["yes", "no"])  # answers that stand in many a passage without being the answer there


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a data set.

    Attributes:
        title: its heading line; empty: none.
        text: its body.
        gold: whether the answer needs it; None where the data does not say.
    """

    title: str
    text: str
    gold: bool | None = None

    def rendered(self) -> str:
        """Heading line, body, blank line: what ingest would make of it in one piece."""
        return f"{self.title}\n{self.text.strip()}{CLOSING}" if self.title else f"{self.text.strip()}{CLOSING}"


@dataclass(slots=True)
class Cutter:
    """Cuts passages into pieces of at most `chunk_tokens` tokens; None: every passage is one piece."""

    chunk_tokens: int | None
    encode: Encode | None
    cut: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def for_request(cls, request: Request) -> Cutter:
        """The cutter that a request asks for.

        Raises:
            ConfigError: it cuts and there is no tokenizer.
        """
        return cls(request.chunk_tokens, None if request.chunk_tokens is None else request.encode)

    def pieces(self, passage: Passage) -> tuple[str, ...]:
        """The passage's pieces, each ending with a blank line.

        Raises:
            ConfigError: `chunk_tokens` is too small for its text.
        """
        if self.chunk_tokens is None or self.encode is None:
            return (passage.rendered(),)
        key = (passage.title, passage.text)
        if key not in self.cut:
            try:
                document = make_document("passage", passage.title, passage.text.strip())
                chunks = tuple(chunk.text for chunk in chunk_document(document, self.encode, self.chunk_tokens))
            except SkipSourceError:
                chunks = (passage.rendered(),)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            self.cut[key] = chunks
        return self.cut[key]

    def prompt(self, passages: Iterable[Passage], answers: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The pieces of an item's passages in their order, and which of them are gold."""
        texts: list[str] = []
        gold: list[int] = []
        for passage in passages:
            pieces = self.pieces(passage)
            gold += (len(texts) + place for place in _gold(passage, pieces, answers))
            texts += pieces
        return tuple(texts), tuple(gold)

    def corpus(self, passages: Iterable[Passage]) -> tuple[str, ...]:
        """The distinct pieces of all passages."""
        return tuple(dict.fromkeys(piece for passage in passages for piece in self.pieces(passage)))


def _gold(passage: Passage, pieces: Sequence[str], answers: Sequence[str]) -> Iterable[int]:
    if passage.gold is False:
        return ()
    told = passage.gold is True
    if told and len(pieces) == 1:
        return (0,)
    sought = [one for one in answers if told or (len(one) > 1 and one.casefold() not in _SAYS_NOTHING)]
    holding = [place for place, piece in enumerate(pieces) if any(holds(piece, answer) for answer in sought)]
    return holding or (range(len(pieces)) if told else ())


def holds(text: str, answer: str) -> bool:
    """Whether an answer stands in a text, as whole words; case and white space do not count."""
    text, answer = " ".join(text.casefold().split()), " ".join(answer.casefold().split())
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.ASCII) is not None if answer else False


def place_gold(item: EvalItem, place: GoldPlace) -> EvalItem:
    """The item with its gold passages next to each other, first, in the middle or last; all else keeps its order."""
    gold = [item.passages[index] for index in item.gold]
    others = [text for index, text in enumerate(item.passages) if index not in item.gold]
    start = {"first": 0, "middle": len(others) // 2, "last": len(others)}[place]
    passages = (*others[:start], *gold, *others[start:])
    return replace(item, passages=passages, gold=tuple(range(start, start + len(gold))))
