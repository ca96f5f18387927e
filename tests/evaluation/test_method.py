"""Methods as they are written."""

from __future__ import annotations

import pytest

from epic_rag.errors import ConfigError
from epic_rag.evaluation.method import BARE, DEFAULT_METHODS, FULL, Method, parse_method, parse_methods
from epic_rag.evict import KVBudget


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none,lego:16", Method("none,lego:16", "none", "lego:16")),
        (" warm:600 , lego:4 ", Method("warm:600,lego:4", "warm:600", "lego:4")),
        ("warm:600,lego:4,roco@25%", Method("warm:600,lego:4,roco@25%", "warm:600", "lego:4", "roco", "25%")),
        ("none,none,codec=int8", Method("none,none,codec=int8", "none", "none", codec="int8")),
        (
            "none,full,codec=int8,roco:head:seeded@1024",
            Method("none,full,roco:head:seeded@1024,codec=int8", "none", "full", "roco:head:seeded", "1024", "int8"),
        ),
        ("full", FULL),
        ("bare", BARE),
    ],
)
def test_a_method_is_read(text: str, expected: Method) -> None:
    assert parse_method(text) == expected
    assert parse_method(expected.name) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "method '': expected ENCODING,SELECTOR"),
        ("none", "method 'none': expected ENCODING,SELECTOR"),
        ("none,", "expected ENCODING,SELECTOR"),
        ("cold,none", "method 'cold,none': unknown encoding 'cold': expected one of none, sinks"),
        ("none,epic:4", "method 'none,epic:4': unknown selector 'epic:4': expected one of"),
        ("none,none,roco", "'roco' is not understood or given twice: expected ENCODING,SELECTOR"),
        ("none,none,best@25%", "unknown policy 'best'"),
        ("none,none,full@25%", "policy 'full' keeps every token"),
        ("none,none,roco@lots", "'lots' is no KV budget"),
        ("none,none,roco@25%,h2o@25%", "'h2o@25%' is not understood or given twice"),
        ("none,none,codec=jpeg", "codec 'jpeg' is unknown: expected one of none,"),
        ("none,none,codec=int8,codec=int8", "given twice"),
    ],
)
def test_what_is_no_method_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_method(text)
    assert said in str(error.value)


def test_full_and_bare_are_always_there_and_nothing_twice() -> None:
    names = [method.name for method in parse_methods(["none,none", "full", "none, none", "bare", *DEFAULT_METHODS])]
    assert names == ["full", "bare", *DEFAULT_METHODS]


def test_encodings_of_a_caller_are_known() -> None:
    assert parse_method("mine,lego:4", ["mine"]).encoding == "mine"
    with pytest.raises(ConfigError, match="unknown encoding 'mine'"):
        parse_method("mine,lego:4")


def test_budget_and_statistics() -> None:
    assert parse_method("none,none").kv_budget is None
    assert parse_method("none,none,h2o@64MB").kv_budget == KVBudget(size_bytes=64_000_000)
    assert [parse_method(f"none,none,{policy}@50%").wants_statistics for policy in ("roco", "roco:seeded", "h2o")] == [
        False,
        True,
        False,
    ]
    assert not FULL.wants_statistics
