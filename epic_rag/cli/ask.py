"""`epic-rag ask`: one question, its answer, its sources, and where the time went."""

from __future__ import annotations

from typing import Annotated

import typer

from epic_rag import config
from epic_rag.cli import options as option
from epic_rag.cli.guard import guarded
from epic_rag.cli.options import open_for_command, parse_where


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="ask")(guarded(ask_command))


def ask_command(
    question: Annotated[str, typer.Argument(help="The question, in words.", show_default=False)],
    store: option.Store = None,
    model: option.Model = None,
    retriever: option.Retriever = config.DEFAULT_RETRIEVER,
    embeddings: option.Embeddings = None,
    where: option.Where = None,
    k: option.K = config.DEFAULT_K,
    selector: option.Selector = config.DEFAULT_SELECTOR,
    policy: option.Policy = None,
    budget: option.Budget = None,
    max_tokens: option.MaxTokens = config.DEFAULT_MAX_TOKENS,
    temperature: option.Temperature = 0.0,
    top_p: option.TopP = 1.0,
    seed: option.Seed = None,
    stop: option.Stop = None,
    allow_fallback: option.AllowFallback = False,
    dtype: option.Dtype = "auto",
    device: option.Device = "auto",
    as_json: option.Json = False,
) -> None:
    """Answer a question from stored KV, with its sources and where the time went."""
    from epic_rag.ask import AskOptions, ask
    from epic_rag.cli.show import show_answer
    from epic_rag.decode import DecodeOptions

    how = DecodeOptions(max_tokens, temperature, top_p, seed, tuple(stop or ()))
    options = AskOptions(k, selector, policy, budget, how, parse_where(where))
    engine = open_for_command(
        store,
        model,
        dtype,
        device,
        must_exist=True,
        allow_fallback=allow_fallback,
        retriever=retriever,
        embeddings=embeddings,
    )
    try:
        show_answer(ask(engine, question, options), as_json=as_json)
    finally:
        engine.close()
