"""`epic-rag config show | path`, and how the settings reach the other commands."""

from __future__ import annotations

from pathlib import Path

import typer

from epic_rag.cli.guard import guarded, settings_mistake
from epic_rag.cli.options import Json
from epic_rag.cli.output import print_json
from epic_rag.errors import ConfigError

_ENGINE = ("store", "model", "dtype", "device")
_ANSWER = (
    *_ENGINE, "retriever", "embeddings", "k", "selector", "policy", "budget", "max_tokens", "temperature", "top_p",
    "seed", "allow_fallback",
)  # fmt: skip
_GENERATE = ("model", "dtype", "device", "policy", "budget", "stride", "max_tokens", "temperature", "top_p", "seed")
# By command, since the same word may mean another thing: the budget of `prune` is that of the store on disk.
TAKEN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("ingest",): (*_ENGINE, "encoding", "chunk_tokens", "retriever", "embeddings"),
    ("ask",): _ANSWER,
    ("chat",): _ANSWER,
    ("generate",): _GENERATE,
    ("eval", "run"): ("model", "dtype", "device"),
    ("eval", "ppl"): ("model", "dtype", "device", "policy", "budget", "stride"),
    **{(name,): ("store",) for name in ("stats", "verify", "prune", "export", "import")},
}


def configure(context: typer.Context) -> None:
    """Make what is configured the options' defaults, so that only the command line overrides it.

    What cannot be read is told when a command runs: `--help` and `config path` answer all the same.
    """
    from epic_rag.settings import DEFAULT, resolve

    try:
        resolved = resolve()
    except (ConfigError, OSError) as error:
        settings_mistake.set(error)
        return
    settings_mistake.set(None)
    context.default_map = {}
    for command, names in TAKEN.items():
        options = context.default_map
        for word in command:
            options = options.setdefault(word, {})
        for name in names:
            if resolved.origins[name] != DEFAULT:
                options[name] = resolved.value(name)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    commands = typer.Typer(help="Show what is configured, and where.", no_args_is_help=True)
    commands.callback()(_config)
    commands.command(name="show")(guarded(show_command))
    commands.command(name="path")(guarded(path_command, needs_settings=False))
    app.add_typer(commands, name="config")


def show_command(as_json: Json = False) -> None:
    """Every setting, its value, and where it comes from; secrets are masked.

    The command line counts most, then the environment, the project's file, the user's file, and the default.
    """
    from epic_rag.settings import DEFAULT, resolve, table

    resolved = resolve()
    rows = [(row, row.shown(resolved.value(row.name)), resolved.origins[row.name]) for row in table()]
    if as_json:
        print_json(
            {
                row.name: {"value": value, "origin": origin, "variable": row.variable, "meaning": row.meaning}
                for row, value, origin in rows
            }
        )
        return
    names, values = max(len(row.name) for row, _, _ in rows), max(len(_text(value)) for _, value, _ in rows)
    for row, value, origin in rows:
        line = f"{row.name:{names}}  {_text(value):{values}}  "
        typer.echo(line + (typer.style(origin, dim=True) if origin == DEFAULT else origin))


def path_command(as_json: Json = False) -> None:
    """The files where settings are looked for, first what counts most."""
    from epic_rag.settings.files import settings_files

    files = settings_files(Path.cwd())
    if as_json:
        print_json(
            {
                "files": [
                    {
                        "path": str(file.path),
                        "scope": file.scope,
                        "exists": file.exists,
                        "passed_over": file.passed_over or None,
                    }
                    for file in files
                ]
            }
        )
        return
    for file in files:
        state = f"passed over: {file.passed_over}" if file.passed_over else "read" if file.exists else "not there"
        typer.echo(f"{file.path}  ({file.scope}, {state})")


def _config() -> None:
    """Show what is configured, and where."""


def _text(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
