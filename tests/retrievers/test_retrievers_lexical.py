import os
import shutil
import threading
import time

import pytest

from epic_rag.retrievers import LexicalIndex, PassageIndex
from epic_rag.retrievers import lexical as lexical_module
from epic_rag.retrievers.bm25 import Bm25


@pytest.fixture
def builds(monkeypatch):
    """How many times scores were built."""
    count = []
    build = Bm25.build
    monkeypatch.setattr(Bm25, "build", lambda passages: count.append(1) or build(passages))
    return count


@pytest.fixture
def index(tmp_path, put_texts):
    with PassageIndex(tmp_path) as index:
        put_texts(index, "animals", "red fish swim", "blue birds fly", "white cats sleep")
        put_texts(index, "lands", "日本語の文書です", "Über Städte und Länder", "fish are caught at sea")
        yield index


def texts(found):
    return [passage.text for passage, _ in found]


def test_search_finds_by_words(index):
    found = LexicalIndex(index).search("Which bird is blue?", 2)
    assert texts(found) == ["blue birds fly"]
    assert found[0][1] > 0
    assert texts(LexicalIndex(index).search("fish", 9)) == ["red fish swim", "fish are caught at sea"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [("文書", "日本語の文書です"), ("日", "日本語の文書です"), ("stadte", "Über Städte und Länder")],
)
def test_search_knows_other_scripts_and_accents(index, query, expected):
    assert texts(LexicalIndex(index).search(query, 3)) == [expected]


@pytest.mark.parametrize("query", ["", "   ", "?!", "unheard", "\ud800", "the"])
def test_a_query_without_a_known_word_finds_nothing(index, query):
    assert LexicalIndex(index).search(query, 3) == []


def test_k_may_be_anything(index):
    lexical = LexicalIndex(index)
    assert [len(lexical.search("fish", k)) for k in (-1, 0, 1, 2, 10**9)] == [0, 0, 1, 2, 2]


def test_an_empty_index_finds_nothing():
    with PassageIndex(None) as index:
        lexical = LexicalIndex(index)
        lexical.refresh()
        assert lexical.search("fish", 3) == []


def test_equal_scores_come_by_source_and_position(put_texts):
    with PassageIndex(None) as index:
        for source in ("b", "a", "c"):
            put_texts(index, source, "same text", "same text")
        found = [(passage.source, passage.position) for passage, _ in LexicalIndex(index).search("same", 5)]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]


def test_every_change_is_seen_by_the_next_search(index, put_texts, builds):
    lexical = LexicalIndex(index)
    assert lexical.search("zebra", 3) == []
    put_texts(index, "new", "a zebra")
    assert texts(lexical.search("zebra", 3)) == ["a zebra"]
    index.delete_document("new")
    assert lexical.search("zebra", 3) == []
    assert len(builds) == 3


def test_scores_are_built_once_and_loaded_after(index, tmp_path, builds):
    LexicalIndex(index).refresh()
    assert sorted(path.name for path in (tmp_path / "lexical").iterdir()) == ["2"]
    lexical = LexicalIndex(index)
    for _ in range(3):
        assert len(lexical.search("fish", 3)) == 2
    assert len(builds) == 1


def test_older_scores_are_removed_and_strangers_stay(index, tmp_path, put_texts):
    lexical = LexicalIndex(index)
    lexical.refresh()
    folder = tmp_path / "lexical"
    for name in (".tmp-dead", ".tmp-alive", "notes", "99"):
        (folder / name).mkdir()
    os.utime(folder / ".tmp-dead", (time.time() - 7200,) * 2)
    put_texts(index, "new", "text")
    lexical.refresh()
    assert sorted(path.name for path in folder.iterdir()) == [".tmp-alive", "3", "99", "notes"]
    assert len(lexical.search("fish", 3)) == 2


def test_scores_of_a_deleted_index_are_not_taken_for_those_of_a_new_one(tmp_path, put_texts):
    for text in ("old words", "new words"):
        with PassageIndex(tmp_path) as index:
            put_texts(index, "a", text)
            assert texts(LexicalIndex(index).search("words", 3)) == [text]
        for file in tmp_path.glob("index.sqlite*"):
            file.unlink()


def damage_manifest(folder):
    (folder / "manifest.json").write_text("{")


def damage_scores(folder):
    (folder / "bm25" / "data.csc.index.npy").write_bytes(b"short")


def lose_a_file(folder):
    (folder / "ids.npy").unlink()


def change_analyzer(folder):
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"analyzer_version": 1', '"analyzer_version": 0'))


@pytest.mark.parametrize("harm", [damage_manifest, damage_scores, lose_a_file, change_analyzer, shutil.rmtree])
def test_harmed_scores_are_built_again_and_kept(index, tmp_path, builds, harm):
    LexicalIndex(index).refresh()
    harm(tmp_path / "lexical" / "2")
    assert len(LexicalIndex(index).search("fish", 3)) == 2
    assert len(LexicalIndex(index).search("fish", 3)) == 2
    assert len(builds) == 2


def test_a_running_search_survives_the_removal_of_its_files(index, tmp_path):
    LexicalIndex(index).refresh()
    lexical = LexicalIndex(index)
    lexical.refresh()
    shutil.rmtree(tmp_path / "lexical")
    assert len(lexical.search("fish", 3)) == 2


def test_read_only_searches_in_memory_and_writes_nothing(index, tmp_path, builds):
    with PassageIndex(tmp_path, read_only=True) as reader:
        lexical = LexicalIndex(reader)
        assert len(lexical.search("fish", 3)) == len(lexical.search("fish", 3)) == 2
    assert not (tmp_path / "lexical").exists()
    assert len(builds) == 1


def test_a_disk_that_refuses_costs_no_answer(index, tmp_path):
    (tmp_path / "lexical").write_text("a file where the folder should be")
    assert len(LexicalIndex(index).search("fish", 3)) == 2


def test_a_failed_write_leaves_nothing_behind(index, tmp_path, monkeypatch):
    def fail(self, folder):
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Bm25, "save", fail)
    assert len(LexicalIndex(index).search("fish", 3)) == 2
    assert list((tmp_path / "lexical").iterdir()) == []


def test_an_index_that_changes_while_scores_are_built(index, put_texts, monkeypatch, tmp_path):
    build, names = Bm25.build, iter(["x", "y", "z", "u", "v"])

    def build_and_change(passages):
        scores = build(passages)
        put_texts(index, next(names), "another fish")
        return scores

    monkeypatch.setattr(Bm25, "build", build_and_change)
    lexical = LexicalIndex(index)
    assert len(lexical.search("fish", 9)) == 2 + lexical_module._MAX_BUILDS - 1
    assert not (tmp_path / "lexical").exists()
    monkeypatch.setattr(Bm25, "build", build)
    assert len(lexical.search("fish", 9)) == 2 + lexical_module._MAX_BUILDS


def test_a_passage_deleted_during_the_search_is_left_out(index, monkeypatch):
    lexical = LexicalIndex(index)
    lexical.refresh()
    state = index.state
    index.delete_document("lands")
    monkeypatch.setattr(PassageIndex, "state", state)
    assert texts(lexical.search("fish", 3)) == ["red fish swim"]


def test_threads_wait_for_one_build(index, builds):
    lexical, found = LexicalIndex(index), []
    threads = [threading.Thread(target=lambda: found.append(len(lexical.search("fish", 3)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 6
    assert len(builds) == 1
