"""`epic-rag chat`: questions one after the other, each answered with the earlier ones in mind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from epic_rag import config
from epic_rag.cli import options as option
from epic_rag.cli.guard import PARTLY, guarded
from epic_rag.cli.options import open_for_command, parse_where
from epic_rag.cli.output import print_json_line

if TYPE_CHECKING:
    from epic_rag.ask import AskOptions
    from epic_rag.engine import Engine
    from epic_rag.history import Turn
    from epic_rag.schema import Answer

_HELP = "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="chat")(guarded(chat_command))


def chat_command(
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
    as_json: option.JsonLines = False,
) -> None:
    """Ask question after question, from the terminal or a line each from standard input.

    /reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer.

    Exit code 0: all were answered; 1: some could not be; 2: it did not begin; 130: interrupted.
    """
    from epic_rag.ask import AskOptions
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
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    try:
        chat = Chat(engine, options, as_json=as_json, at_terminal=at_terminal)
        chat.run(_typed(prompt="" if as_json else "> ") if at_terminal else _piped())
    finally:
        engine.close()
    if chat.failed and not at_terminal:
        raise typer.Exit(PARTLY)


class Chat:
    """A conversation: the turns so far, and how the next line is taken.

    Attributes:
        failed: questions that could not be answered.
    """

    def __init__(self, engine: Engine, options: AskOptions, *, as_json: bool, at_terminal: bool) -> None:
        self._engine = engine
        self._options = options
        self._as_json = as_json
        self._at_terminal = at_terminal
        self._turns: list[Turn] = []
        self.failed = 0

    def run(self, lines: Iterator[str]) -> None:
        """Take line after line, until there is none or one says /quit."""
        if self._at_terminal and not self._as_json:
            typer.secho(_HELP, dim=True, err=True)
        for line in lines:
            text = line.strip()
            if text == "/quit":
                return
            if text == "/reset":
                self._turns.clear()
            elif text.startswith("/"):
                typer.secho(f"'{text}' is unknown: {_HELP}", fg="yellow", err=True)
            elif text:
                self._ask(text)

    def _ask(self, question: str) -> None:
        """Answer one question; what goes wrong with it ends only this question."""
        from epic_rag.errors import EpicError
        from epic_rag.kvstore.errors import StoreError
        from epic_rag.retrievers.errors import RetrieverError

        try:
            self._answer(question)
        except (EpicError, StoreError, RetrieverError) as error:
            self.failed += 1
            if self._as_json:
                print_json_line({"question": question, "error": str(error)})
            else:
                typer.secho(f"error: {error}", fg="red", err=True)

    def _answer(self, question: str) -> None:
        """Show an answer as it comes, and remember it; one that was stopped counts as far as it was shown."""
        from epic_rag.ask import Delta, ask
        from epic_rag.schema import Answer

        text, answer = "", None
        try:
            for event in ask(self._engine, question, self._options, history=tuple(self._turns)):
                if isinstance(event, Delta):
                    text += event.text
                    self._show(event.text)
                elif isinstance(event, Answer):
                    answer = event
        except KeyboardInterrupt:
            if not self._at_terminal:
                raise
        self._remember(question, text)
        if not self._as_json:
            _show_end(answer)
        elif answer is not None:
            print_json_line(answer.to_dict())
        else:
            print_json_line({"question": question, "answer": text, "stopped": True})

    def _show(self, text: str) -> None:
        if not self._as_json:
            typer.echo(text, nl=False)

    def _remember(self, question: str, text: str) -> None:
        from epic_rag.history import Turn

        if text:
            self._turns += [Turn("user", question), Turn("assistant", text)]


def _show_end(answer: Answer | None) -> None:
    """Sources and figures below an answer; None: it was stopped."""
    from rich.console import Console

    from epic_rag.cli.show import show_sources, token_line

    typer.echo("\n")
    if answer is None:
        typer.secho("stopped", fg="yellow", err=True)
        return
    for warning in answer.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    console, timings = Console(highlight=False, emoji=False), answer.timings
    show_sources(console, answer.sources)
    seconds = f"{timings.ttft_seconds:.2f} s to the first token, {timings.total_seconds:.2f} s in all"
    console.print(f"{seconds}; {token_line(answer)}\n", style="dim", soft_wrap=True)


def _piped() -> Iterator[str]:
    """The lines of standard input; none when it is closed."""
    for line in () if sys.stdin is None else sys.stdin.buffer:
        yield line.decode("utf-8", errors="replace")


def _typed(prompt: str) -> Iterator[str]:
    """The lines that somebody types, with the terminal's editing; Ctrl-C drops a line that was begun."""
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - `input` uses it once it is loaded
    while True:
        try:
            yield input(prompt)
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
