"""A summary as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from epic_rag.evaluation.summary import Estimate, Summary

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    ("rows", "rows", 1, False),
    ("kept", "kept", 0, False),
    ("kl", "KL (nats)", 3, True),
    ("closed", "closed", 2, True),
    ("benefit_kept", "benefit kept", 2, True),
    ("rank4", "rank-4", 2, True),
    ("agree", "agree", 2, False),
    ("nll", "NLL", 2, False),
    ("f1", "F1", 2, True),
    ("em", "EM", 2, False),
    ("contains", "contains", 2, True),
    ("rouge_l", "ROUGE-L", 2, True),
    ("recall", "recall", 2, True),
    ("link_seconds", "link (s)", 2, False),
)
"""Measure, heading, digits, and whether the standard error is shown."""
_GIVEN_UP = ("link_seconds", "em", "nll", "agree", "kept", "contains", "rouge_l", "f1", "benefit_kept", "rank4")
"""Columns that a narrow table goes without, first the one that says least."""
_SHARES = ("rows", "kept")
_GAP = 2


def summary_table(summary: Summary, title: str, width: int | None = None) -> Table:
    """One row a method; columns that no method has are left out.

    Args:
        summary: of one task.
        title: stands above.
        width: letters in a line; what does not fit is left out. None: any.
    """
    from rich.table import Table

    columns = _columns(summary)
    names = ["method", *summary.methods]
    for name in _GIVEN_UP:
        if width is not None and _width(names, columns.values()) > width:
            columns.pop(name, None)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), title=title, title_justify="left")
    table.add_column(names[0])
    for heading, *_ in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for number, method in enumerate(summary.methods, 1):
        table.add_row(method, *(column[number] for column in columns.values()))
    return table


def _columns(summary: Summary) -> dict[str, list[str]]:
    """Heading and cells of every measure that a method has."""
    columns = {}
    for name, heading, digits, with_error in _COLUMNS:
        estimates = [found.get(name) for found in summary.methods.values()]
        if name == "kept" and all(one is None or one.value == 1 for one in estimates):
            continue
        if any(estimates):
            columns[name] = [heading, *(_cell(one, name, digits, with_error) for one in estimates)]
    return columns


def _width(names: Sequence[str], columns: Iterable[Sequence[str]]) -> int:
    return max(map(len, names)) + sum(_GAP + max(map(len, column)) for column in columns)


def _cell(estimate: Estimate | None, name: str, digits: int, with_error: bool) -> str:
    if estimate is None:
        return ""
    if name in _SHARES:
        return f"{estimate.value:.{digits}%}"
    error = f" ±{estimate.error:.{digits}f}" if with_error and estimate.error is not None else ""
    return f"{estimate.value:.{digits}f}{error}"
