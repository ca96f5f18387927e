"""Options that several commands share, and the engine that they open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from epic_rag.engine import Engine

# What is configured is never shown as the default of --store: it may hold a password.
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        show_default=False,
        help="A folder, memory://, redis://host or tiered:ADDRESSES. Default: as configured, else .epic-rag.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        show_default=False,
        help="Hugging Face id, folder, .gguf file or 'demo'. Default: as configured, else the demo model if there.",
    ),
]
K = Annotated[int, typer.Option("--k", help="Passages to retrieve.")]
Retriever = Annotated[str, typer.Option("--retriever", help="How passages are found: bm25, dense or hybrid.")]
Embeddings = Annotated[
    str | None,
    typer.Option(
        "--embeddings",
        show_default=False,  # may hold the key of a service
        help="Of dense and hybrid: a folder, a Hugging Face id or module:Class. Default: as configured, else 'demo'.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", help="Only passages with FIELD=PATTERN, such as source='docs/*'; may be repeated."),
]
Selector = Annotated[
    str,
    typer.Option(
        "--selector",
        help="Context tokens computed again: none, lego:K, query:R, cacheblend:R, joined as in lego:4+query:0.05, "
        "auto, auto:R or full (a full prefill). K: tokens of each passage; R: share of all.",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy", help="Which tokens stay under --budget: roco (the default), h2o, tova, recency, random; or full."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", help="What may stay in the KV cache: tokens (1024), a share (25%) or bytes (64MB)."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus for sampling.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="The answer ends before this text; may be repeated.")]
AllowFallback = Annotated[
    bool,
    typer.Option(
        "--allow-fallback/--no-allow-fallback", help="Answer with full prefills when the model cannot be linked."
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, bfloat16, float16 or float32.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of text.")]


def open_for_command(
    store: str | None,
    model: str | None,
    dtype: str,
    device: str,
    *,
    must_exist: bool = False,
    allow_fallback: bool = False,
    statistics: bool = False,
    retriever: str | None = None,
    embeddings: str | None = None,
) -> Engine:
    """Open store and model without the progress bars of the libraries; see `open_engine`."""
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
        retriever=retriever,
        embeddings=embeddings,
    )


def parse_where(where: list[str] | None) -> dict[str, str]:
    """`FIELD=PATTERN` as field and pattern.

    Raises:
        ConfigError: no `=`, or a field given twice.
    """
    from epic_rag.errors import ConfigError

    found: dict[str, str] = {}
    for text in where or ():
        name, equals, pattern = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--where '{text}': expected FIELD=PATTERN, such as source='docs/*'")
        if name in found:
            raise ConfigError(f"--where '{text}': {name} is asked for twice; give each field once")
        found[name] = pattern
    return found
