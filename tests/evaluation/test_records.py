"""The file of records: what a kill leaves is usable, and what does not belong together is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.errors import ConfigError
from epic_rag.evaluation.records import Record, Records, digest_of

SETTINGS = {"model": "abc", "task": "xquad:8", "seed": 0, "version": "0.1.0"}


def record(item: str, method: str = "full", kl: float = 0.5, answer: str | None = None) -> Record:
    return Record(item, method, "aaaa", "bbbb", {"kl": kl}, answer)


def opened(path: Path, **settings: object) -> Records:
    records = Records(path, {"gold_place": None})
    records.begin({**SETTINGS, **settings})  # type: ignore[arg-type]
    return records


def test_what_is_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    one = opened(path)
    one.add([record("a"), record("a", "none,none", answer="line\u2028 end\n")])
    one.add([record("b")])
    again = opened(path)
    assert list(again) == list(one) == [record("a"), record("a", "none,none", answer="line\u2028 end\n"), record("b")]
    assert again.find("a", "none,none") == record("a", "none,none", answer="line\u2028 end\n")
    assert again.find("c", "full") is None


def test_the_later_record_counts(tmp_path: Path) -> None:
    opened(tmp_path / "r").add([record("a", kl=0.5)])
    opened(tmp_path / "r").add([record("a", kl=0.25, answer="yes")])
    assert list(opened(tmp_path / "r")) == [record("a", kl=0.25, answer="yes")]


def test_the_header_names_the_settings(tmp_path: Path) -> None:
    opened(tmp_path / "r")
    header = json.loads((tmp_path / "r").read_text(encoding="utf-8"))
    assert header["settings"] == {**SETTINGS, "gold_place": None}
    assert header["digest"] == digest_of({**SETTINGS, "gold_place": None})


def test_a_file_cut_anywhere_loses_at_most_the_record_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    records = opened(path)
    for number in range(3):
        records.add([record(f"item {number}")])
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:length])
        found = list(opened(cut))
        assert len(found) == max(0, whole[:length].count(b"\n") - 1)
        assert found == list(records)[: len(found)]
        opened(cut).add([record("next")])
        assert list(opened(cut)) == [*found, record("next")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"model": "x", "task": "musique"}, "model: abc there, x now; task: xquad:8 there, musique now"),
        ({"dtype": "float32"}, "dtype: None there, float32 now"),
        ({"version": "0.2.0"}, "version: 0.1.0 there, 0.2.0 now"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    opened(tmp_path / "r").add([record("a")])
    before = (tmp_path / "r").read_bytes()
    with pytest.raises(ConfigError) as error:
        opened(tmp_path / "r", **changed)
    assert f"({said}): choose another folder with --out, or remove the file" in str(error.value)
    assert (tmp_path / "r").read_bytes() == before


def test_the_version_of_a_checkout_could_be_any(tmp_path: Path) -> None:
    opened(tmp_path / "r").add([record("a")])
    assert list(opened(tmp_path / "r", version="0+unknown")) == [record("a")]


@pytest.mark.parametrize("line", ["not json", "[]", '{"item": "a"}', '{"measures": 3}', "\ufffd"])
def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path, line: str) -> None:
    opened(tmp_path / "r").add([record("a")])
    with (tmp_path / "r").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n{record('b').to_json()}\n")
    with pytest.raises(ConfigError, match=r"r:3 is damaged: remove this line"):
        opened(tmp_path / "r")


@pytest.mark.parametrize("text", ["{}\n", "hello\n", '{"format": 99, "settings": {}}\n', "[1]\n"])
def test_another_file_is_not_written_to(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="no file of records of this version"):
        opened(tmp_path / "r")
    assert (tmp_path / "r").read_text(encoding="utf-8") == text


def test_no_nan_reaches_the_file(tmp_path: Path) -> None:
    records = opened(tmp_path / "r")
    before = (tmp_path / "r").read_bytes()
    with pytest.raises(ValueError, match="Out of range float"):
        records.add([record("a", kl=float("nan"))])
    assert (tmp_path / "r").read_bytes() == before


@settings(max_examples=50)
@given(
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    st.none() | st.text(),
)
def test_a_record_is_one_line_and_comes_back(
    item: str, method: str, measures: dict[str, float], answer: str | None
) -> None:
    one = Record(item, method, "c", "p", measures, answer)
    assert "\n" not in one.to_json()
    assert Record.from_json(one.to_json()) == one
