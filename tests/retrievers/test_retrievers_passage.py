import dataclasses

import pytest

from epic_rag.retrievers import Passage, passage_id

FIELDS = {"source": "a.md", "position": 2, "title": "A", "text": "A > B\nwords\n\n", "token_ids": [5, 6], "line": 7}


def test_the_id_depends_on_source_position_and_text_only():
    passage = Passage.create(**FIELDS)
    assert passage.id == passage_id("a.md", 2, FIELDS["text"])
    assert Passage.create(**FIELDS | {"title": "other", "token_ids": [1], "line": 1, "start_char": 9}).id == passage.id
    changed = {Passage.create(**FIELDS | change).id for change in ({"source": "b.md"}, {"position": 3}, {"text": "x"})}
    assert len(changed | {passage.id}) == 4


def test_fields_do_not_run_into_each_other_in_the_id():
    assert passage_id("a", 1, "2b") != passage_id("a", 12, "b") != passage_id("a1", 2, "b")


def test_the_id_is_the_same_in_every_process():
    assert passage_id("a", 0, "b") == "89ee663e87936d41438f1ce239bb6742261abb59614e791b89680674beb5ad6d"


def test_a_passage_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Passage.create(**FIELDS).text = "other"


def test_as_a_document():
    passage = Passage.create(**FIELDS)
    document = passage.to_document(1.5)
    assert (document.id, document.page_content) == (passage.id, passage.text)
    assert document.metadata == {"source": "a.md", "position": 2, "title": "A", "line": 7, "score": 1.5}
    assert "score" not in passage.to_document().metadata
