"""Options that several commands share."""

from __future__ import annotations

import pytest

from epic_rag.cli.options import parse_where
from epic_rag.errors import ConfigError


def test_where_is_fields_and_patterns() -> None:
    assert parse_where(None) == {}
    assert parse_where(["source=docs/*", "title=a=b"]) == {"source": "docs/*", "title": "a=b"}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["source"], "--where 'source': expected FIELD=PATTERN"),
        (["=docs"], "--where '=docs': expected FIELD=PATTERN"),
        (["source=a", "source=b"], "--where 'source=b': source is asked for twice"),
    ],
)
def test_a_malformed_where_is_told(where: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_where(where)
    assert str(caught.value).startswith(said)
