"""What `EpicRAG` gives: the events of an answer as parts of one dict, which add up to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from langchain_core.documents import Document
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables.utils import AddableDict
from typing_extensions import TypedDict

from epic_rag.ask import Context, Delta
from epic_rag.chat.report import usage
from epic_rag.condense import Condensed
from epic_rag.history import Turn, search_text
from epic_rag.schema import Answer, Source


class RAGAnswer(TypedDict, total=False):
    """Output; in a stream its parts arrive one after the other and add up.

    `standalone_question` is there where a conversation was condensed; `usage` then counts that too.
    """

    question: str
    standalone_question: str
    context: list[Document]
    answer: str
    timings: dict[str, float]
    usage: UsageMetadata
    warnings: list[str]
    dropped: list[dict[str, str | int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question on its way to an answer.

    Attributes:
        question: as the user put it.
        turns: the conversation that stands in the prompt before it.
        condensed: the question made to stand alone; None: it was left as it is.
    """

    question: str
    turns: tuple[Turn, ...]
    condensed: Condensed | None = None

    @property
    def text(self) -> str:
        """What is answered."""
        return self.question if self.condensed is None else self.condensed.text

    @property
    def before(self) -> UsageMetadata | None:
        """Tokens that were spent on the question before it was answered; None: none."""
        if self.condensed is None:
            return None
        read, written = self.condensed.prompt_tokens, self.condensed.answer_tokens
        return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)

    @property
    def search_text(self) -> str:
        """What passages are looked up for."""
        return search_text(self.text, self.turns)

    def part(self, event: Context | Delta | Answer) -> RAGAnswer:
        """An event of the answer as a part of the output."""
        if isinstance(event, Delta):
            return AddableDict(answer=event.text)  # type: ignore[return-value]
        if isinstance(event, Answer):
            return _last_part(event, self.before)
        extra = {} if self.condensed is None else {"standalone_question": self.text}
        documents = [_document(source) for source in event.sources]
        return AddableDict(question=self.question, **extra, context=documents, answer="")  # type: ignore[return-value]


def _document(source: Source) -> Document:
    metadata = {name: getattr(source, name) for name in ("source", "position", "title", "line", "score", "key", "tier")}
    return Document(page_content=source.text, metadata=metadata)


def _last_part(answer: Answer, before: UsageMetadata | None) -> RAGAnswer:
    return AddableDict(  # type: ignore[return-value]
        timings=asdict(answer.timings),
        usage=add_usage(usage(answer.tokens), before),
        warnings=list(answer.warnings),
        dropped=[asdict(gone) for gone in answer.dropped],
    )
