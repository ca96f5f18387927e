"""What the commands print: for people with rich, for programs as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

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
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {"read": bars.add_task("read documents", total=None)}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task("encode chunks", total=total)
            bars.update(tasks[step], completed=done, total=total or None)

        yield tell


def show_ingest(report: IngestReport, *, as_json: bool) -> None:
    """Print an ingest's summary."""
    if as_json:
        print_json(report.to_dict())
        return
    for error in report.errors:
        typer.secho(f"left out: {error.source}: {error.reason}", fg="yellow", err=True)
    for warning in report.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    documents = f"{report.added} added, {report.updated} updated, {report.skipped} unchanged, {report.deleted} deleted"
    typer.echo(f"documents: {documents}, {len(report.errors)} left out")
    nothing = "; nothing had to be encoded" if report.chunks and not report.encoded else ""
    typer.echo(f"chunks:    {report.chunks}, {report.encoded} encoded now, {report.reused} already stored{nothing}")
    typer.echo(f"stored:    {report.bytes / 1e6:.1f} MB, encoding {report.encoding}, {report.seconds:.1f} s")


def show_answer(events: Iterator[Context | Delta | Answer], *, as_json: bool) -> None:
    """Print an answer as it comes, then its sources and stages."""
    console, answer = Console(highlight=False), None
    for event in events:
        if isinstance(event, Delta) and not as_json:
            console.print(escape(event.text), end="", soft_wrap=True)
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
        console.print(f"  left out: {escape(gone.source)} (chunk {gone.position}): {gone.reason}", style="dim")
    console.print(stage_table([("", answer)]))
    console.print(token_line(answer))


def show_sources(console: Console, sources: tuple[Source, ...]) -> None:
    """Print numbered sources: file, line, chunk, tier and score."""
    for number, source in enumerate(sources, 1):
        where = f"{source.source}:{source.line}" if source.line else source.source
        about = f"chunk {source.position}, from {source.tier}, score {source.score:.2f}"
        console.print(f"[{number}]".replace("[", "\\["), f"{escape(where)}  [dim]{about}[/dim]", soft_wrap=True)


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
    console = Console(highlight=False)
    console.print(f"store:     {escape(report.store)}", soft_wrap=True)
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
        console.print(f"advice: {escape(advice)}", soft_wrap=True)
