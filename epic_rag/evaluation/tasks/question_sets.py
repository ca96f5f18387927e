"""Questions that come with their passages: hotpotqa, musique, and anybody's JSON Lines.

Source: Yang et al., "HotpotQA", arXiv 1809.09600; Trivedi et al., "MuSiQue", arXiv 2108.00573.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.tasks.finish import draw_choices, finish
from epic_rag.evaluation.tasks.passages import Cutter, Passage
from epic_rag.evaluation.tasks.request import Request
from epic_rag.evaluation.tasks.rows import Row, data_file, read_rows, shown
from epic_rag.loading.document import clean_text
from epic_rag.loading.json_ import Json


@dataclass(frozen=True, slots=True)
class _Question:
    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]


def hotpotqa(request: Request) -> Task:
    """`hotpotqa`: ten paragraphs, gold the two that the answer needs, whether or not they hold its words."""
    request.no_more_arguments(0)
    return _task(request, data_file(request, "hotpotqa", "hotpotqa_train100.jsonl"))


def musique(request: Request) -> Task:
    """`musique`: ten passages without titles; gold are those that hold the answer's words, if any does."""
    request.no_more_arguments(0)
    return _task(request, data_file(request, "musique", "musique_s.jsonl"))


def any_jsonl(request: Request) -> Task:
    """`jsonl:PATH`: one object a line.

    * `question`: a string
    * `answers`: a string or a list of them; the first is forced
    * `docs`: a list, in the prompt's order, of strings or of `{"text", "title"?, "gold"?}`; where no doc of a line says
      `gold`, those that hold an answer's words are
    * `id`: optional, unique; by default a digest of the line
    """
    path = Path(request.argument(0, "a file", str)).expanduser()
    if not path.is_file():
        raise ConfigError(f"{request.spec}: there is no file {path.absolute()}; name a JSON Lines file")
    return _task(request, path)


def _task(request: Request, path: Path) -> Task:
    """All lines of a file, in an order that the seed draws; passages keep the order of the data."""
    questions = _read(path)
    cutter = Cutter.for_request(request)
    corpus = cutter.corpus(passage for one in questions for passage in one.passages)
    request.draw("questions").shuffle(questions)
    return finish(request, "answer", _items(request, questions, cutter), corpus)


def _items(request: Request, questions: Sequence[_Question], cutter: Cutter) -> Iterator[EvalItem]:
    pool = sorted({one.answers[0] for one in questions})
    for one in questions:
        texts, gold = cutter.prompt(one.passages, one.answers)
        choices = draw_choices(pool, one.answers, request.draw(one.id))
        yield EvalItem(one.id, one.question, one.answers, texts, gold, choices)


def _read(path: Path) -> list[_Question]:
    lines: dict[str, int] = {}
    questions: list[_Question] = []
    for row in read_rows(path):
        one = _Question(_id(row), row.text("question"), row.texts("answers"), _passages(row))
        if one.id in lines:
            raise row.wrong(f"has the same id as line {lines[one.id]}, '{one.id}'; give every line an 'id' of its own")
        lines[one.id] = row.line
        questions.append(one)
    if not questions:
        raise ConfigError(f"{path} holds no line; write one object a line")
    return questions


def _id(row: Row) -> str:
    given = row.fields.get("id")
    if given is None:
        line = json.dumps(row.fields, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else row.text("id")


def _passages(row: Row) -> tuple[Passage, ...]:
    docs = row.fields.get("docs")
    if not isinstance(docs, list) or not docs:
        raise row.wrong(f"'docs' must be a list with at least one passage, got {shown(docs)}")
    says_gold = any(isinstance(doc, dict) and "gold" in doc for doc in docs)
    return tuple(_passage(row, doc, says_gold=says_gold) for doc in docs)


def _passage(row: Row, doc: Json, *, says_gold: bool) -> Passage:
    if isinstance(doc, str) and doc.strip():
        return Passage("", clean_text(doc), False if says_gold else None)
    if not isinstance(doc, dict):
        raise row.wrong(f"every one of 'docs' must be a string with some text or an object, got {shown(doc)}")
    gold = doc.get("gold", False) if says_gold else None
    if gold is not None and not isinstance(gold, bool):
        raise row.wrong(f"'gold' must be true or false, got {shown(gold)}")
    inner = Row(row.path, row.line, doc)
    return Passage(" ".join(inner.text("title", "").split()), inner.text("text"), gold)
