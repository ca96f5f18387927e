"""What the commands print: for people with rich, for programs as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from epic_rag.ask import Context, Delta
from epic_rag.cli.output import print_json
from epic_rag.ingest import Progress as IngestProgress
from epic_rag.metrics import STAGES
from epic_rag.schema import Answer, IngestReport, Source
from epic_rag.stats import StoreReport


@contextmanager
def ingest_progress(*, quiet: bool) -> Iterator[IngestProgress | None]:
    """A progress bar on standard error for a long ingest; nothing when `quiet` or not at a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=60) as bars:
        tasks = {"read": bars.add_task("read documents", total=None, unit="documents")}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                bars.update(tasks["read"], total=bars.tasks[0].completed)
                what, unit = ("embed", "passages") if step == "embed" else ("encode", "tokens")
                tasks[step] = bars.add_task(f"{what} {unit}", total=total, unit=unit)
            bars.update(tasks[step], completed=done, total=total or None)

        yield tell


class RateColumn(ProgressColumn):
    """How fast it goes, in the task's own unit: tokens per second over the last minute."""

    def render(self, task: Task) -> Text:
        """The rate, or nothing while it is not known."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.0f} {task.fields['unit']}/s")


def show_ingest(report: IngestReport, *, as_json: bool, one_line: bool = False) -> None:
    """Print an ingest's summary; `one_line` keeps the JSON in one, where more will follow."""
    if as_json:
        if one_line:
            typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
        else:
            print_json(report.to_dict())
        return
    for error in report.errors:
        typer.secho(f"left out: {error.source}: {error.reason}", fg="yellow", err=True)
    for warning in report.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    for change in report.changes:
        typer.echo(f"would {change.action} {change.source}")
    if report.dry_run:
        typer.echo("dry run:   nothing was written; what follows would be done")
    documents = f"{report.added} added, {report.updated} updated, {report.skipped} unchanged, {report.deleted} deleted"
    ignored = f", {report.ignored} hidden or of unknown suffix" if report.ignored else ""
    typer.echo(f"documents: {documents}, {len(report.errors)} left out{ignored}")
    nothing = "; nothing had to be encoded" if report.chunks and not report.encoded else ""
    typer.echo(f"chunks:    {report.chunks}, {report.encoded} encoded now, {report.reused} already stored{nothing}")
    if report.dry_run:
        typer.echo(f"to encode: {report.encoded_tokens} of {report.tokens} tokens, {report.seconds:.1f} s to find out")
        return
    rate = f", {report.tokens_per_second:,.0f} tokens/s" if report.encoded else ""
    typer.echo(f"stored:    {report.bytes / 1e6:.1f} MB, encoding {report.encoding}, {report.seconds:.1f} s{rate}")


def show_answer(events: Iterator[Context | Delta | Answer], *, as_json: bool) -> None:
    """Print an answer as it comes, then its sources and stages."""
    console, answer = Console(highlight=False, emoji=False), None
    for event in events:
        if isinstance(event, Delta) and not as_json:
            typer.echo(event.text, nl=False)
        elif isinstance(event, Answer):
            answer = event
    if answer is None:
        return
    if as_json:
        print_json(answer.to_dict())
        return
    console.print("\n")
    for warning in answer.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    show_sources(console, answer.sources)
    for gone in answer.dropped:
        console.print(Text(f"  left out: {gone.source} (chunk {gone.position}): {gone.reason}", style="dim"))
    console.print(stage_table([("", answer)]))
    console.print(token_line(answer))


def show_sources(console: Console, sources: tuple[Source, ...]) -> None:
    """Print numbered sources: file, line, chunk, tier and score."""
    for number, source in enumerate(sources, 1):
        where = f"{source.source}:{source.line}" if source.line else source.source
        about = f"chunk {source.position}, from {source.tier}, score {source.score:.2f}"
        console.print(Text.assemble(f"[{number}] {where}  ", (about, "dim")), soft_wrap=True)


def stage_table(columns: list[tuple[str, Answer]]) -> Table:
    """Seconds per stage, one column an answer."""
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for heading, _ in columns:
        table.add_column(heading or "seconds", justify="right")
    for stage in (*STAGES, "ttft", "total"):
        row = [f"{getattr(answer.timings, f'{stage}_seconds'):.3f}" for _, answer in columns]
        table.add_row(stage, *row)
    return table


def token_line(answer: Answer) -> str:
    """Token counts in words."""
    tokens = answer.tokens
    counts = f"{tokens.context} in context, {tokens.loaded} loaded, {tokens.recomputed} recomputed, {tokens.kept} kept"
    return f"tokens: {counts}, {tokens.answer} in the answer ({answer.selector})"


def show_stats(report: StoreReport, *, as_json: bool) -> None:
    """Print what a store holds."""
    if as_json:
        print_json(report.to_dict())
        return
    console = Console(highlight=False, emoji=False, markup=False)
    console.print(f"store:     {report.store}", soft_wrap=True)
    console.print(f"documents: {report.documents}, {report.passages} passages in the index")
    console.print(f"KV:        {report.entries} chunks, {report.bytes / 1e6:.1f} MB")
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "encoding", "dtype", "chunks", "MB", "profile"):
        table.add_column(heading)
    for profile in report.profiles:
        size = f"{profile.bytes / 1e6:.1f}"
        table.add_row(profile.model, profile.encoding, profile.dtype, str(profile.entries), size, profile.digest[:12])
    console.print(table)
    for advice in report.advice:
        console.print(f"advice: {advice}", soft_wrap=True)
