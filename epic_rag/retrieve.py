"""Stage retrieve: question to passages, from the store's own index or from any LangChain retriever."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsFloat

from langchain_core.documents import Document

from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.loading.document import clean_text
from epic_rag.model.tokens import TextTokenizer
from epic_rag.retrievers.where import Where, condition


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A passage as it will stand in the prompt.

    Attributes:
        text: what the model reads.
        token_ids: `text` in the model's tokens, no control tokens.
        source: document it comes from.
        position: ordinal of the chunk in its document, from 0.
        score: larger is better.
        title: title of the document.
        line: line where it starts, from 1; 0 when unknown.
    """

    text: str
    token_ids: tuple[int, ...]
    source: str
    position: int
    score: float
    title: str = ""
    line: int = 0


def retrieve(engine: Engine, question: str, k: int, where: Where | None = None) -> list[Retrieved]:
    """The best passages of the engine's index, best first.

    Args:
        engine: its `search` finds them.
        question: in words.
        k: how many at most; `bm25` finds fewer when fewer share a word with the question.
        where: only passages whose fields match are ranked, such as `{"source": "*/guides/*"}`; None ranks all.

    Raises:
        ConfigError: `where` names a field that there is not.
        EmbedderError: the embedder of `dense` or `hybrid` failed.
    """
    try:
        condition(where)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [
        Retrieved(
            text=passage.text,
            token_ids=engine.token_ids(passage),
            source=passage.source,
            position=passage.position,
            score=score,
            title=passage.title,
            line=passage.line,
        )
        for passage, score in engine.search.search(question, k, where)
    ]


def from_documents(documents: Iterable[Document], tokenizer: TextTokenizer) -> list[Retrieved]:
    """Passages of any LangChain retriever; each becomes one chunk, set off from the next by an empty line.

    A blank document has no token ids: there is nothing in it to be encoded or cited.
    """
    found = []
    for rank, document in enumerate(documents):
        content, metadata = clean_text(document.page_content), document.metadata
        text = content if content.endswith("\n") else f"{content}\n\n"
        found.append(
            Retrieved(
                text=text,
                token_ids=tuple(tokenizer.encode(text)) if content.strip() else (),
                source=str(metadata.get("source") or document.id or f"document {rank + 1}"),
                position=int(number(metadata.get("position"))),
                score=number(metadata.get("score")),
                title=str(metadata.get("title") or ""),
                line=int(number(metadata.get("line"))),
            )
        )
    return found


def number(value: object) -> float:
    """A number of somebody else's metadata; 0 for whatever is none."""
    if isinstance(value, (bool, str)) or not isinstance(value, SupportsFloat):  # np.float32 is no float
        return 0.0
    try:
        found = float(value)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):  # too large, or an array of several
        return 0.0
    return found if math.isfinite(found) else 0.0
