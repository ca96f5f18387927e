"""No traceback reaches a user: every expected error becomes one line on standard error and an exit code."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec

import typer

Params = ParamSpec("Params")

PARTLY = 1
"""Exit code: done, but something was left out."""
NOT_DONE = 2
"""Exit code: the command could not be carried out."""
INTERRUPTED = 130
"""Exit code: stopped by Ctrl-C."""

settings_mistake: ContextVar[Exception | None] = ContextVar("settings_mistake", default=None)
"""What was wrong with the settings; told when a command runs, so that `--help` answers all the same."""


def guarded(command: Callable[Params, None], *, needs_settings: bool = True) -> Callable[Params, None]:
    """Run `command`; print what it raises on purpose as one line.

    Args:
        command: what to run.
        needs_settings: do not run it when the settings could not be read.
    """

    @functools.wraps(command)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> None:
        from epic_rag.errors import EpicError
        from epic_rag.kvstore.errors import StoreError
        from epic_rag.retrievers.errors import RetrieverError

        _quiet()
        mistake = settings_mistake.get() if needs_settings else None
        try:
            if mistake is not None:
                raise mistake  # noqa: TRY301 - told like any other
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # whoever read the output has left: typer ends in silence
            raise
        except (EpicError, StoreError, RetrieverError, OSError) as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(NOT_DONE) from None
        except MemoryError:
            typer.secho("error: out of memory; use a smaller model, fewer passages or --max-tokens", fg="red", err=True)
            raise typer.Exit(NOT_DONE) from None
        except Exception as error:  # noqa: BLE001 - the last line before a traceback
            told = f"error: {type(error).__name__}: {error}. This was not foreseen: please report it with the command"
            typer.secho(told, fg="red", err=True)
            raise typer.Exit(NOT_DONE) from None
        except KeyboardInterrupt:
            typer.secho(
                "interrupted; what was stored stays, run the same command again to go on", fg="yellow", err=True
            )
            raise typer.Exit(INTERRUPTED) from None

    return run


def _quiet() -> None:
    """Other libraries' warnings are for developers; our own come as `warning:` lines."""
    warnings.simplefilter("ignore")
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    for name in ("transformers", "huggingface_hub", "pypdf", "bm25s", "torch"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
