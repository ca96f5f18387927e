"""xquad: questions on Wikipedia paragraphs, one gold paragraph among others drawn from the same set.

Source: Artetxe, Ruder and Yogatama, "On the cross-lingual transferability of monolingual representations",
arXiv 1910.11856; the English questions are SQuAD's (arXiv 1606.05250).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.tasks.finish import draw_choices, finish
from epic_rag.evaluation.tasks.passages import Cutter, Passage
from epic_rag.evaluation.tasks.request import Request, at_least
from epic_rag.evaluation.tasks.rows import Row, data_file, read_rows

DEFAULT_PARAGRAPHS = 8
LANGUAGES = ("en", "es", "zh", "ar")


def xquad(request: Request) -> Task:
    """`xquad[:PARAGRAPHS[:LANG]]`; with `zh/en` Chinese questions are asked on English paragraphs.

    Questions on paragraphs not asked about before come first. Where the two languages differ the answer that is forced
    is the one that stands in the paragraph, and the question's own language gives the second.
    """
    request.no_more_arguments(2)
    num_paragraphs = request.argument(0, "how many paragraphs", at_least(1), DEFAULT_PARAGRAPHS)
    asked, read = request.argument(1, f"a language of {', '.join(LANGUAGES)}, or two as in zh/en", _languages, _EN)
    passages = read_paragraphs(request, read)
    if num_paragraphs > len(passages):
        raise ConfigError(f"{request.spec}: xquad has {len(passages)} paragraphs, {num_paragraphs} were asked for")
    questions = list(read_rows(data_file(request, "xquad", f"{asked}_questions.jsonl")))
    answered = {
        row.text("id"): row.texts("answers")
        for row in read_rows(data_file(request, "xquad", f"{read}_questions.jsonl"))
    }
    cutter = Cutter.for_request(request)
    items = _items(request, _in_order(request, questions), answered, passages, num_paragraphs, cutter)
    return finish(request, "answer", items, cutter.corpus(passages.values()))


def read_paragraphs(request: Request, language: str = "en") -> dict[str, Passage]:
    """All paragraphs of a language, by id.

    Raises:
        ConfigError: the file is not there or cannot be read.
    """
    rows = read_rows(data_file(request, "xquad", f"{language}_paragraphs.jsonl"))
    return {row.text("id"): Passage(row.text("title"), row.text("text")) for row in rows}


_EN = ("en", "en")


def _languages(text: str) -> tuple[str, str]:
    asked, slash, read = text.partition("/")
    pair = (asked, read if slash else asked)
    if not set(pair) <= set(LANGUAGES):
        raise ValueError(text)
    return pair


def _in_order(request: Request, questions: list[Row]) -> Iterable[Row]:
    """Questions as the seed draws them, the first on every paragraph before the second on any."""
    wanted = [row for row in questions if request.wants(row.text("id"))]
    request.draw("questions").shuffle(wanted)
    asked = Counter[str]()
    rank: dict[str, int] = {}
    for row in wanted:
        rank[row.text("id")] = asked[row.text("doc_id")]
        asked[row.text("doc_id")] += 1
    return sorted(wanted, key=lambda row: rank[row.text("id")])


def _items(
    request: Request,
    questions: Iterable[Row],
    answered: Mapping[str, tuple[str, ...]],
    passages: Mapping[str, Passage],
    num_paragraphs: int,
    cutter: Cutter,
) -> Iterator[EvalItem]:
    pool = tuple(dict.fromkeys(answers[0] for answers in answered.values()))
    for row in questions:
        name, gold = row.text("id"), row.text("doc_id")
        if gold not in passages or name not in answered:
            raise row.wrong(f"there is no paragraph '{gold}' or no answer to '{name}' in the other file")
        answers = tuple(dict.fromkeys((*answered[name], *row.texts("answers"))))
        draw = request.draw(name)
        chosen = _paragraphs(passages, gold, draw.sample(sorted(set(passages) - {gold}), num_paragraphs - 1))
        draw.shuffle(chosen)
        texts, places = cutter.prompt(chosen, answered[name])
        yield EvalItem(name, row.text("question"), answers, texts, places, draw_choices(pool, answers, draw))


def _paragraphs(passages: Mapping[str, Passage], gold: str, others: Sequence[str]) -> list[Passage]:
    first = Passage(passages[gold].title, passages[gold].text, gold=True)
    return [first, *(Passage(passages[name].title, passages[name].text, gold=False) for name in others)]
