"""Filters on what the index knows of a passage, in words and in SQL."""

from __future__ import annotations

from collections.abc import Mapping

Where = Mapping[str, str]
"""Field to the pattern that its whole value must match: `*` is any run of characters, `/` among them, `?` is one,
`[abc]` one of these; upper and lower case differ. All fields must match; an empty filter matches every passage."""

FIELDS = ("source", "title", "text", "position")
"""What a filter may ask of a passage."""


def condition(where: Where | None) -> tuple[str, tuple[str, ...]]:
    """The filter as an SQL condition on passages, and its values.

    Raises:
        ValueError: A field that there is not.
    """
    wanted = dict(where or {})
    unknown = sorted(set(wanted) - set(FIELDS))
    if unknown:
        raise ValueError(f"where names {', '.join(map(repr, unknown))}; fields of a passage are {', '.join(FIELDS)}")
    return " AND ".join([f"{field} GLOB ?" for field in wanted]) or "true", tuple(wanted.values())
