"""`epic-rag ingest`: documents to stored KV, once, as a dry run, or again and again while they change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epic_rag import config
from epic_rag.cli import options as option
from epic_rag.cli.guard import PARTLY, guarded
from epic_rag.cli.options import open_for_command

if TYPE_CHECKING:
    from epic_rag.engine import Engine
    from epic_rag.ingest import IngestOptions


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="ingest")(guarded(ingest_command))


def ingest_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files, folders, quoted patterns ('docs/**/*.md'); - reads JSON Lines from standard input.",
            show_default=False,
        ),
    ],
    store: option.Store = None,
    model: option.Model = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="none, sinks, prompt or warm:N. Default: the store's own; warm:600 at the first ingest."),
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Largest chunk, in tokens.")] = config.DEFAULT_CHUNK_TOKENS,
    retriever: option.Retriever = config.DEFAULT_RETRIEVER,
    embeddings: option.Embeddings = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove documents whose files are gone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Go on and ingest what changes, until Ctrl-C; with --json one object a line an ingest."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes that read and cut documents.")] = 1,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Store attention statistics too, for --policy roco:seeded.")
    ] = False,
    dtype: option.Dtype = "auto",
    device: option.Device = "auto",
    as_json: option.Json = False,
) -> None:
    """Read documents, prefill them once and store their KV. Run it again at any time: only what changed is encoded.

    Exit code 0: all done; 1: something was left out; 2: stopped, run it again to go on; 130: interrupted.
    """
    from epic_rag.ingest import IngestOptions

    options = IngestOptions(chunk_tokens=chunk_tokens, encoding=encoding, prune=prune, dry_run=dry_run, jobs=jobs)
    where = _store_of_dry_run(store) if dry_run else store
    engine = open_for_command(
        where, model, dtype, device, statistics=statistics, retriever=retriever, embeddings=embeddings
    )
    try:
        if watch:
            _watch(engine, paths, options, as_json=as_json)
        else:
            _once(engine, paths, options, as_json=as_json)
    finally:
        engine.close()


def _once(engine: Engine, paths: list[Path], options: IngestOptions, *, as_json: bool) -> None:
    from epic_rag.cli.show import ingest_progress, show_ingest
    from epic_rag.ingest import ingest

    with ingest_progress(quiet=as_json) as progress:
        report = ingest(engine, paths, options, progress)
    show_ingest(report, as_json=as_json)
    if report.errors or report.warnings:
        raise typer.Exit(PARTLY)


def _watch(engine: Engine, paths: list[Path], options: IngestOptions, *, as_json: bool) -> None:
    """Until Ctrl-C: the exit code is that of an interrupted ingest, and all that was stored stays."""
    from epic_rag.cli.show import ingest_progress, show_ingest
    from epic_rag.ingestion.watch import Watch

    reports = Watch(engine, paths, options).reports(lambda: ingest_progress(quiet=as_json))
    for report in reports:
        show_ingest(report, as_json=as_json, one_line=True)


def _store_of_dry_run(store: str | None) -> str:
    """A store in memory stands in for one that is not there, so that none is made."""
    from epic_rag.kvstore.uri import store_exists
    from epic_rag.settings import configured

    uri = configured({"store": store}).store
    return uri if store_exists(uri) else "memory://"
