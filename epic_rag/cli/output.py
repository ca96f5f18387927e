"""What commands print alike."""

from __future__ import annotations

import json
from collections.abc import Mapping

import typer


def print_json(values: Mapping[str, object]) -> None:
    """Print one JSON object on standard output."""
    typer.echo(json.dumps(values, ensure_ascii=False, indent=2))


def print_json_line(values: Mapping[str, object]) -> None:
    """Print one JSON object on one line of standard output, at once."""
    typer.echo(json.dumps(values, ensure_ascii=False))
