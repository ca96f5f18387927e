"""No two lists of fields share a digest."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.kvstore.digest import FieldValue, digest_fields

VALUES = st.one_of(
    st.text(max_size=3), st.binary(max_size=3), st.integers(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
)
FIELDS = st.lists(st.tuples(st.sampled_from(["", "a", "b", "ab"]), VALUES), max_size=3)

LOOKALIKES: list[list[tuple[str, FieldValue]]] = [
    [],
    [("", "")],
    [("a", "")],
    [("a", b"")],
    [("a", [])],
    [("a", 0)],
    [("a", "0")],
    [("a", b"0")],
    [("a", [0])],
    [("a", [0, 0])],
    [("a", "0"), ("b", "1")],
    [("a", "0b1")],
    [("a", "0"), ("b", ""), ("", "1")],
    [("b", "1"), ("a", "0")],
    [("ab", "c")],
    [("a", "bc")],
    [("a", -1)],
    [("a", [-1])],
]


def test_the_digest_is_fixed() -> None:
    expected = "0374aa644ca99bab71920c004d12db120a0ddeccab215d884dfb4367e58b827f"
    assert digest_fields(("text", "é"), ("number", 7), ("bytes", b"\0"), ("ids", [1, 2])) == expected


def test_lookalikes_differ() -> None:
    digests = [digest_fields(*fields) for fields in LOOKALIKES]
    assert all(len(digest) == 64 and int(digest, 16) >= 0 for digest in digests)
    assert [pair for pair in combinations(digests, 2) if pair[0] == pair[1]] == []


@given(FIELDS, FIELDS)
def test_different_fields_have_different_digests(
    one: list[tuple[str, FieldValue]], two: list[tuple[str, FieldValue]]
) -> None:
    assert (digest_fields(*one) == digest_fields(*two)) == (one == two)


def test_a_tuple_is_a_sequence() -> None:
    assert digest_fields(("a", (1, 2))) == digest_fields(("a", [1, 2]))


@pytest.mark.parametrize("value", [1.0, True, None, [2**63], ["1"], [1.5], {1}])
def test_other_values_are_refused(value: FieldValue) -> None:
    with pytest.raises(ValueError, match="'a'"):
        digest_fields(("a", value))
