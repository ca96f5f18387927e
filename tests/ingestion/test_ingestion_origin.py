import pytest

from epic_rag.ingestion.origin import Origin


@pytest.mark.parametrize(
    "origin", [Origin(300), Origin(64, handed_over=True), Origin(64, folder="/p"), Origin(64, folder="/caf\udce9 \"#'")]
)
def test_what_is_noted_comes_back(origin: Origin) -> None:
    assert Origin.of(origin.to_json()) == origin
    assert origin.to_json().isascii()


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ('{"chunk_tokens": 300}', Origin(300)),
        ('{"chunk_tokens": 300, "origin": "documents"}', Origin(300, handed_over=True)),
        ('{"chunk_tokens": 300, "folder": 7, "more": []}', Origin(300)),
        ('{"chunk_tokens": "many", "origin": ["documents"]}', Origin(0)),
        ("{}", Origin(0)),
    ],
)
def test_notes_of_other_releases_are_read(text: str, origin: Origin) -> None:
    assert Origin.of(text) == origin


@pytest.mark.parametrize("text", ["", "options", '{"chunk_tokens": 30', "[1]", "null", "[" * 100_000])
def test_what_is_no_note_is_no_file(text: str) -> None:
    assert Origin.of(text) == Origin(0, handed_over=True)


def test_the_same_cut_may_come_from_another_folder() -> None:
    here = Origin(300, folder="/here")
    assert here.same_cut(Origin(300, folder="/there"))
    assert here.same_cut(Origin(300))
    assert not here.same_cut(Origin(64, folder="/here"))
    assert not here.same_cut(Origin(300, handed_over=True))
