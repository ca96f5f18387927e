"""The program `epic-rag`. Heavy imports wait until a command runs, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from epic_rag import __version__, config
from epic_rag.cli import ask, chat, evaluate, generate, ingest, maintain, settings
from epic_rag.cli.guard import guarded
from epic_rag.cli.options import Json, Store

app = typer.Typer(
    name="epic-rag",
    help="LangChain RAG with a persistent KV store: documents are prefilled once, at ingest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epic-rag {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """LangChain RAG with a persistent KV store: documents are prefilled once, at ingest."""
    settings.configure(context)


@app.command(name="stats")
@guarded
def stats_command(store: Store = None, as_json: Json = False) -> None:
    """Show what a store holds: documents, chunks and bytes per encoding profile."""
    from epic_rag.cli.show import show_stats
    from epic_rag.stats import read_stats

    show_stats(read_stats(store), as_json=as_json)


for command in (ingest, ask, chat, maintain, generate, evaluate, settings):
    command.register(app)


def main() -> None:
    """Entry point of the command `epic-rag`."""
    config.share_cores()
    app()
