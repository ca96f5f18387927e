"""Tasks by name: data sets on disk, any JSON Lines file, and generators that hide facts in a haystack.

A task is the same for the same spec, seed and count, on every machine; more items begin with the items of fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import Half, Task
from epic_rag.evaluation.tasks.dialogsum import dialogsum
from epic_rag.evaluation.tasks.needle import needle
from epic_rag.evaluation.tasks.question_sets import any_jsonl, hotpotqa, musique
from epic_rag.evaluation.tasks.request import GoldPlace, Request
from epic_rag.evaluation.tasks.ruler import multi_key, multi_query, multi_value, single
from epic_rag.evaluation.tasks.variable_tracking import variable_tracking
from epic_rag.evaluation.tasks.xquad import xquad

if TYPE_CHECKING:
    from epic_rag.model.tokens import TextTokenizer

__all__ = ["TASKS", "GoldPlace", "TaskKind", "open_task", "task_kind"]


@dataclass(frozen=True, slots=True)
class TaskKind:
    """One row of the registry.

    Attributes:
        usage: how it is asked for.
        about: what it asks, in a few words.
        make: makes it.
    """

    usage: str
    about: str
    make: Callable[[Request], Task]


TASKS: Mapping[str, TaskKind] = MappingProxyType(
    {
        "xquad": TaskKind("xquad[:PARAGRAPHS[:LANG]]", "one gold paragraph among others; LANG en, or zh/en", xquad),
        "hotpotqa": TaskKind("hotpotqa", "two of ten paragraphs are needed", hotpotqa),
        "musique": TaskKind("musique", "several of ten passages are needed", musique),
        "dialogsum": TaskKind("dialogsum", "summarise one of four dialogues", dialogsum),
        "jsonl": TaskKind("jsonl:PATH", "your own lines of {question, answers, docs}", any_jsonl),
        "ruler-single": TaskKind("ruler-single:TOKENS", "one hidden code", single),
        "ruler-multikey": TaskKind("ruler-multikey:TOKENS", "one of four hidden codes", multi_key),
        "ruler-multivalue": TaskKind("ruler-multivalue:TOKENS", "all four codes of one thing", multi_value),
        "ruler-multiquery": TaskKind("ruler-multiquery:TOKENS", "the codes of four things", multi_query),
        "ruler-vt": TaskKind("ruler-vt:TOKENS", "follow a chain of variables", variable_tracking),
        "needle": TaskKind("needle:TOKENS[:DEPTH]", "one hidden fact, at DEPTH 0 to 1", needle),
    }
)


def open_task(
    spec: str,
    *,
    data: Path | None = None,
    tokenizer: TextTokenizer | None = None,
    count: int | None = None,
    seed: int = 0,
    half: Half | None = None,
    gold_place: GoldPlace | None = None,
    chunk_tokens: int | None = None,
    corpus: Path | None = None,
) -> Task:
    """Make the task that `spec` names.

    Args:
        spec: what to ask, such as `xquad:8`; `TASKS` lists all.
        data: folder of the evaluation data, with one folder a data set in it.
        tokenizer: counts tokens, for generated tasks and for `chunk_tokens`.
        count: most items wanted, at least 1; a data set that has fewer gives what it has. None: all of a data set, 100
            of a generated task.
        seed: draws the items and what is drawn in them.
        half: only items of this half.
        gold_place: where the gold passages go, next to each other; items whose gold is not known are left out.
        chunk_tokens: passages are cut into pieces of at most so many tokens, as ingest cuts documents; gold are then
            the pieces that hold the answer, or all pieces of a gold passage none of which holds it. Generated tasks cut
            their haystack in any case, by default to 200.
        corpus: files or a folder, the haystack of generated tasks; by default xquad's paragraphs where `data` has
            them, else made-up plain English.

    Returns:
        The task, with at least one item.

    Raises:
        ConfigError: there is no such task, its data is not there or cannot be read, or an option cannot be.
    """
    kind = task_kind(spec)
    arguments = spec.split(":", 1 if spec.startswith("jsonl:") else -1)[1:]
    request = Request(
        spec, kind.usage, tuple(arguments), data, corpus, tokenizer, count, seed, half, gold_place, chunk_tokens
    )
    return kind.make(request)


def task_kind(spec: str) -> TaskKind:
    """The kind of task that `spec` names; its arguments are not looked at.

    Raises:
        ConfigError: there is none; lists what there is.
    """
    kind = TASKS.get(spec.split(":", 1)[0])
    if kind is None:
        known = "\n".join(f"  {kind.usage:<28} {kind.about}" for kind in TASKS.values())
        raise ConfigError(f"there is no task '{spec}'; there are:\n{known}")
    return kind
