"""Items and their halves."""

import hashlib

import pytest

from epic_rag.evaluation.item import EvalItem, half


@pytest.mark.parametrize("name", ["", "dev_0", "56beb4343aeaaa14008c925b", "ruler-vt:2048/xquad/0/7", "é/中"])
def test_the_half_is_the_last_bit_of_the_ids_sha256(name: str) -> None:
    assert half(name) == ("report" if int(hashlib.sha256(name.encode()).hexdigest(), 16) & 1 else "tune")


def test_halves_of_known_ids_never_change() -> None:
    assert [half(f"dev_{number}") for number in range(6)] == ["tune", "tune", "report", "tune", "report", "report"]


def test_about_half_of_the_ids_each() -> None:
    tuned = sum(half(f"item-{number}") == "tune" for number in range(4000))
    assert 1870 < tuned < 2130  # four standard deviations of a fair coin


def test_an_item_cannot_be_changed() -> None:
    item = EvalItem("a", "q", ("x",), ("p\n\n",))
    with pytest.raises(AttributeError):
        item.question = "other"
    assert (item.gold, item.choices, item.max_answer_tokens) == ((), (), 16)
