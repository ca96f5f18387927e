"""The program `epic-rag`. Heavy imports wait until a command runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epic_rag import __version__, config
from epic_rag.cli.generate import register as register_generate
from epic_rag.cli.guard import PARTLY, guarded
from epic_rag.cli.maintain import register

if TYPE_CHECKING:
    from epic_rag.engine import Engine

app = typer.Typer(
    name="epic-rag",
    help="LangChain RAG with a persistent KV store: documents are prefilled once, at ingest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="A folder, memory://, redis://host or tiered:ADDRESSES. Default: EPIC_RAG_STORE, else .epic-rag here.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Hugging Face id, folder, .gguf file or 'demo'. Default: EPIC_RAG_MODEL, else the demo model if there.",
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, bfloat16, float16 or float32.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _open(
    store: str | None,
    model: str | None,
    dtype: str,
    device: str,
    *,
    must_exist: bool = False,
    allow_fallback: bool = False,
    statistics: bool = False,
) -> Engine:
    from epic_rag.engine import open_engine
    from epic_rag.model.load import silence_progress

    silence_progress()
    return open_engine(
        store,
        model,
        dtype=dtype,
        device=device,
        must_exist=must_exist,
        allow_fallback=allow_fallback,
        statistics=statistics,
    )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epic-rag {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """LangChain RAG with a persistent KV store: documents are prefilled once, at ingest."""


@app.command(name="ingest")
@guarded
def ingest_command(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", show_default=False)],
    store: Store = None,
    model: Model = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="none, sinks, prompt or warm:N. Default: the store's own; warm:600 at the first ingest."),
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Largest chunk, in tokens.")] = config.DEFAULT_CHUNK_TOKENS,
    prune: Annotated[bool, typer.Option("--prune", help="Remove documents whose files are gone.")] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Store attention statistics too, for --policy roco:seeded.")
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Read documents, prefill them once and store their KV. Run it again at any time: only what changed is encoded.

    Exit code 0: all done; 1: something was left out; 2: stopped, run it again to go on; 130: interrupted.
    """
    from epic_rag.cli.show import ingest_progress, show_ingest
    from epic_rag.ingest import IngestOptions, ingest

    options = IngestOptions(chunk_tokens=chunk_tokens, encoding=encoding, prune=prune)
    engine = _open(store, model, dtype, device, statistics=statistics)
    try:
        with ingest_progress(quiet=as_json) as progress:
            report = ingest(engine, paths, options, progress)
    finally:
        engine.close()
    show_ingest(report, as_json=as_json)
    if report.errors or report.warnings:
        raise typer.Exit(PARTLY)


@app.command(name="ask")
@guarded
def ask_command(
    question: Annotated[str, typer.Argument(help="The question, in words.", show_default=False)],
    store: Store = None,
    model: Model = None,
    k: Annotated[int, typer.Option("--k", help="Passages to retrieve.")] = config.DEFAULT_K,
    selector: Annotated[
        str, typer.Option(help="Context tokens computed again: none, lego:K or full (a full prefill).")
    ] = config.DEFAULT_SELECTOR,
    policy: Annotated[
        str | None,
        typer.Option(help="Which tokens stay under --budget: roco (the default), h2o, tova, recency, random; or full."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="What may stay in the KV cache: tokens (1024), a share (25%) or bytes (64MB).")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = config.DEFAULT_MAX_TOKENS,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus for sampling.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="The answer ends before this text; may be repeated.")] = None,
    allow_fallback: Annotated[
        bool, typer.Option("--allow-fallback", help="Answer with full prefills when the model cannot be linked.")
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question from stored KV, with its sources and where the time went."""
    from epic_rag.ask import AskOptions, ask
    from epic_rag.cli.show import show_answer
    from epic_rag.decode import DecodeOptions

    how = DecodeOptions(max_tokens, temperature, top_p, seed, tuple(stop or ()))
    options = AskOptions(k=k, selector=selector, policy=policy, budget=budget, decode=how)
    engine = _open(store, model, dtype, device, must_exist=True, allow_fallback=allow_fallback)
    try:
        show_answer(ask(engine, question, options), as_json=as_json)
    finally:
        engine.close()


@app.command(name="stats")
@guarded
def stats_command(store: Store = None, as_json: Json = False) -> None:
    """Show what a store holds: documents, chunks and bytes per encoding profile."""
    from epic_rag.cli.show import show_stats
    from epic_rag.stats import read_stats

    show_stats(read_stats(store), as_json=as_json)


register(app)
register_generate(app)


def main() -> None:
    """Entry point of the command `epic-rag`."""
    config.share_cores()
    app()
