"""What commands print alike."""

from __future__ import annotations

import json
from collections.abc import Mapping

import typer


def print_json(values: Mapping[str, object]) -> None:
    """Print one JSON object on standard output."""
    typer.echo(json.dumps(values, ensure_ascii=False, indent=2))
