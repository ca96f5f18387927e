"""Filters on what the index knows of a passage, in words and in SQL."""

from __future__ import annotations

from collections.abc import Mapping

Where = Mapping[str, str]
"""Field to the pattern that its whole value must match: `*` is any run of characters, `/` among them, `?` is one,
`[abc]` one of these; upper and lower case differ. A source's pattern also matches the records in it, `source#record`.
All fields must match; an empty filter matches every passage."""

FIELDS = ("source", "title", "text", "position")
"""What a filter may ask of a passage."""


def condition(where: Where | None) -> tuple[str, tuple[str, ...]]:
    """The filter as an SQL condition on passages, and its values.

    Raises:
        ValueError: A field that there is not, or a pattern that is no text.
    """
    wanted = dict(where or {})
    unknown = sorted(set(wanted) - set(FIELDS))
    if unknown:
        raise ValueError(f"where names {', '.join(map(repr, unknown))}; fields of a passage are {', '.join(FIELDS)}")
    for field, pattern in wanted.items():
        _check(field, pattern)
    fields = ["(source GLOB ? OR source GLOB ?)" if field == "source" else f"{field} GLOB ?" for field in wanted]
    values = [
        value
        for field, pattern in wanted.items()
        for value in ((pattern, f"{pattern}#*") if field == "source" else (pattern,))
    ]
    return " AND ".join(fields) or "true", tuple(values)


def _check(field: str, pattern: object) -> None:
    if not isinstance(pattern, str):
        kind = type(pattern).__name__
        raise ValueError(f"where, {field}: expected a pattern as a string, got {kind}")  # noqa: TRY004  as for any value
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"where, {field}: {pattern!r} holds what no text may hold; write such bytes as \\xNN"
        ) from None
