"""What `epic-rag eval` does with each task: measure, keep, show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from epic_rag.evaluation.item import Task
from epic_rag.evaluation.plots import draw
from epic_rag.evaluation.records import Records
from epic_rag.evaluation.results import About, results, stem_of, write_results
from epic_rag.evaluation.run import OnItem, evaluate
from epic_rag.evaluation.summary import Summary, summarise
from epic_rag.evaluation.table import summary_table
from epic_rag.kvstore.store import KVStore
from epic_rag.model import LanguageModel

_SECONDS_BETWEEN_LINES = 30.0
_WIDEST = 500
"""Letters in a line of a file or a pipe, which nobody has to fit on a screen."""


class Evaluation:
    """Tasks measured one after the other with the same methods."""

    def __init__(
        self,
        model: LanguageModel,
        methods: Sequence[str],
        out: Path,
        seed: int,
        about: About,
        store: KVStore | None,
        *,
        generate: bool,
        plot: bool,
    ) -> None:
        self._model = model
        self._methods = methods
        self._out = out
        self._seed = seed
        self._about = about
        self._store = store
        self._generate = generate
        self._plot = plot
        self._summaries: dict[str, Summary] = {}

    def measure(self, task: Task, *, show: bool) -> None:
        """Measure a task, keep records and summary, draw and show what is asked for."""
        stem = stem_of(task.name, self._model, self._seed, self._about)
        records = Records(self._out / f"{stem}.jsonl", self._about)
        with progress(task.name) as on_item:
            found = evaluate(
                self._model,
                task,
                self._methods,
                records=records,
                seed=self._seed,
                generate=self._generate,
                on_item=on_item,
                store=self._store,
            )
        summary = self._summaries[task.name] = summarise(found, seed=self._seed)
        write_results(self._out / f"{stem}.json", results(self._model, self._seed, {task.name: summary}))
        drawn = draw(summary, self._out, stem, f"{task.name}, {self._model.name}") if self._plot else []
        if show:
            self._show(summary, task.name, [self._out / f"{stem}.json", *drawn])

    def results(self) -> dict[str, object]:
        """All tasks measured so far, for JSON."""
        return results(self._model, self._seed, self._summaries)

    def _show(self, summary: Summary, name: str, written: Sequence[Path]) -> None:
        at_terminal = Console().is_terminal
        console = Console(highlight=False, emoji=False, markup=False, width=None if at_terminal else _WIDEST)
        title = f"{name}, {self._model.name}, seed {self._seed}, {summary.items} items"
        console.print(summary_table(summary, title, console.width))
        console.print(f"written: {', '.join(map(str, written))}\n", soft_wrap=True)


@contextmanager
def progress(name: str) -> Iterator[OnItem]:
    """Tells how far a task is, on standard error: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(name)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("items")
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _lines(name: str) -> OnItem:
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{name}: {done} of {total} items", err=True)

    return tell
