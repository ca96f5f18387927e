"""Anybody's JSON Lines as a task."""

import json
from pathlib import Path

import pytest

from epic_rag.errors import ConfigError
from epic_rag.evaluation.tasks import open_task

ROW = {"question": "Who?", "answers": ["Ada"], "docs": ["Ada came.", "Bob left."]}


def task_of(tmp_path: Path, *rows: object):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return open_task(f"jsonl:{path}")


def by_question(task) -> dict:
    return {item.question: item for item in task.items}


def test_docs_are_strings_or_objects_and_answers_a_string_or_a_list(tmp_path: Path) -> None:
    items = by_question(
        task_of(
            tmp_path,
            ROW,
            "",
            {"question": "Q2?", "answers": "Bob", "docs": [{"title": "On Bob", "text": " Bob left. "}, "Nobody else."]},
            {"id": 7, "question": "Q3?", "answers": ["x", "y"], "docs": [{"text": "x y"}, {"text": "z", "gold": True}]},
        )
    )
    assert items["Who?"].passages == ("Ada came.\n\n", "Bob left.\n\n")
    assert items["Who?"].gold == (0,)
    assert items["Q2?"].passages == ("On Bob\nBob left.\n\n", "Nobody else.\n\n")
    assert (items["Q2?"].answers, items["Q2?"].gold) == (("Bob",), (0,))
    assert (items["Q3?"].id, items["Q3?"].answers, items["Q3?"].gold) == ("7", ("x", "y"), (1,))


def test_a_line_without_id_keeps_its_name_wherever_it_stands(tmp_path: Path) -> None:
    other = {**ROW, "question": "Where?"}
    one, moved = by_question(task_of(tmp_path, ROW, other)), by_question(task_of(tmp_path, "", other, ROW))
    assert one["Who?"].id == moved["Who?"].id != one["Where?"].id


def test_few_answers_give_no_choices(tmp_path: Path) -> None:
    few = [{**ROW, "question": f"{name}?", "answers": name} for name in ("Ada", "Bob", "Cleo")]
    assert {item.choices for item in task_of(tmp_path, *few).items} == {()}
    more = [*few, {**ROW, "question": "D?", "answers": "Dan"}]
    for item in task_of(tmp_path, *more).items:
        assert {*item.choices, *item.answers} == {"Ada", "Bob", "Cleo", "Dan"}


def test_escapes_of_half_a_character_can_be_tokenised(tmp_path: Path) -> None:
    (item,) = task_of(tmp_path, '{"question": "a\\ud800?", "answers": "b\\u0000", "docs": ["c\\ud800"]}').items
    assert " ".join([item.question, *item.answers, *item.passages]).encode().decode()
    assert "\0" not in item.answers[0]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert task_of(tmp_path, "\ufeff" + json.dumps(ROW)).items[0].question == "Who?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": ', "line 2: no JSON"),
        ("[1]", r"line 2: expected an object, got \[1\]"),
        ("[" * 100_000, "line 2: no JSON"),
        ({**ROW, "question": ""}, "line 2: 'question' must be a string with some text, got \"\""),
        ({"answers": "a", "docs": ["d"]}, "line 2: 'question' must be .* got null"),
        ({**ROW, "answers": []}, "line 2: 'answers' must be a string or a list of strings, got "),
        ({**ROW, "answers": [3]}, "line 2: 'answers' must be a string with some text, got 3"),
        ({**ROW, "answers": {"a": "b" * 100}}, "got .*…"),
        ({**ROW, "docs": []}, "line 2: 'docs' must be a list with at least one passage"),
        ({**ROW, "docs": "text"}, "line 2: 'docs' must be a list"),
        ({**ROW, "docs": [" "]}, "line 2: every one of 'docs' must be a string with some text or an object"),
        ({**ROW, "docs": [{"title": "t"}]}, "line 2: 'text' must be a string with some text, got null"),
        ({**ROW, "docs": [{"text": "t", "gold": 1}]}, "line 2: 'gold' must be true or false, got 1"),
        ({**ROW, "docs": [{"text": "t", "title": 1}]}, "line 2: 'title' must be a string"),
        ({**ROW, "id": [1]}, "line 2: 'id' must be a string"),
        (ROW, "line 2: has the same id as line 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_of(tmp_path, ROW, row)


def test_a_file_without_lines_or_of_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no line"):
        task_of(tmp_path, "", " ")
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"question": "caf\xe9"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        open_task(f"jsonl:{path}")


def test_no_item_left_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({**ROW, "answers": "Zoe"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="no item with a known gold passage"):
        open_task(f"jsonl:{path}", gold_place="first")
