import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from epic_rag.retrievers import DocumentRecord, Passage, PassageIndex


@pytest.fixture(params=["memory", "folder"])
def index(request, tmp_path):
    with PassageIndex(None if request.param == "memory" else tmp_path / "new" / "index#1?") as index:
        yield index


def test_a_new_index_is_empty(index):
    assert (index.num_documents, index.num_passages, index.revision) == (0, 0, 0)
    assert list(index.sources()) == list(index.passages()) == index.get(["nothing"]) == []
    assert index.document("a") is None
    assert index.get_meta("name") is None
    assert not index.delete_document("a")
    assert index.revision == 0


def test_what_was_put_comes_back(index, put_texts):
    passages = put_texts(index, "a", "one", "två", "三\n\n")
    assert list(index.passages()) == index.document_passages("a") == passages
    assert index.document("a") == DocumentRecord(
        "a", "digest of ('one', 'två', '三\\n\\n')", "tokenizer", "options", 3, 9
    )
    assert (index.num_documents, index.num_passages, index.revision) == (1, 3, 1)


def test_putting_again_replaces_every_passage(index, put_texts):
    old = put_texts(index, "a", "one", "two", "three")
    new = put_texts(index, "a", "one", "zwei")
    assert list(index.passages()) == new
    assert index.get([passage.id for passage in old]) == [new[0]]
    assert (index.num_documents, index.num_passages, index.revision) == (1, 2, 2)


def test_a_document_may_have_no_passages(index, put_texts):
    put_texts(index, "empty")
    assert index.document("empty").num_passages == 0
    assert list(index.sources()) == ["empty"]


def test_deleting_takes_the_passages_along(index, put_texts):
    put_texts(index, "a", "one")
    kept = put_texts(index, "b", "two")
    assert index.delete_document("a")
    assert list(index.passages()) == kept
    assert (list(index.sources()), index.revision) == (["b"], 3)


def test_a_note_is_changed_without_a_new_revision(index, put_texts):
    passages, state = put_texts(index, "a", "one"), index.state
    index.set_options("a", "other")
    index.set_options("b", "of a document that is not there")
    assert index.document("a") == DocumentRecord("a", "digest of ('one',)", "tokenizer", "other", 1, 3)
    assert (list(index.passages()), list(index.sources()), index.state) == (passages, ["a"], state)


def test_order_is_by_source_and_position_over_many_pages(index, put_texts):
    names = ["b", "a/b", "é", "a", "Z", "a b"]
    for name in names:
        put_texts(index, name, *(f"{name} {number}" for number in range(400)))
    found = [(passage.source, passage.position) for passage in index.passages()]
    assert found == [(name, number) for name in sorted(names) for number in range(400)]


def test_get_keeps_the_order_asked_for_and_leaves_out_what_is_gone(index, put_texts):
    passages = put_texts(index, "a", *(f"text {number}" for number in range(1200)))
    random.Random(0).shuffle(passages)
    ids = [passage.id for passage in passages]
    assert index.get([*ids[:600], "nothing", *ids[600:]]) == passages
    assert index.get([ids[0], ids[0]]) == [passages[0], passages[0]]


@pytest.mark.parametrize(
    ("source", "positions", "message"),
    [("b", [0], "put under 'b'"), ("a", [0, 0], "got 0, expected 1"), ("a", [1], "got 1, expected 0")],
)
def test_passages_that_do_not_fit_change_nothing(index, put_texts, source, positions, message):
    before = put_texts(index, "a", "kept")
    wrong = [
        Passage.create(source="a", position=position, title="", text=str(number), token_ids=[])
        for number, position in enumerate(positions)
    ]
    with pytest.raises(ValueError, match=message):
        index.put_document(source, "d", "t", "o", wrong)
    assert list(index.passages()) == before
    assert index.revision == 1


def test_an_interrupted_put_leaves_the_old_document(index, put_texts):
    before = put_texts(index, "a", "kept")
    bad = Passage.create(source="a", position=0, title="", text="x", token_ids=[2**40])  # beyond 32 bits
    with pytest.raises(OverflowError):
        index.put_document("a", "d", "t", "o", [bad])
    assert list(index.passages()) == before
    put_texts(index, "b", "the index still takes writes")
    assert index.num_documents == 2


def test_token_ids_use_all_31_bits(index):
    ids = [0, 1, 2**31 - 1]
    index.put_document("a", "d", "t", "o", [Passage.create(source="a", position=0, title="", text="x", token_ids=ids)])
    assert next(index.passages()).token_ids == tuple(ids)


def test_meta_values_do_not_count_as_a_change(index):
    index.set_meta("profile", "one")
    index.set_meta("profile", "two")
    assert (index.get_meta("profile"), index.revision) == ("two", 0)


def test_state_tells_apart_histories_of_equal_length(tmp_path, put_texts):
    states = set()
    for name in ("one", "two"):
        with PassageIndex(tmp_path / name) as index:
            put_texts(index, "a", "same")
            states.add(index.state)
    assert {state.revision for state in states} == {1}
    assert len(states) == 2


def test_everything_outlives_the_process(tmp_path, put_texts):
    with PassageIndex(tmp_path) as index:
        passages, state = put_texts(index, "a", "one", "two"), index.state
        index.set_meta("name", "value")
    with PassageIndex(tmp_path) as index:
        assert (list(index.passages()), index.state, index.get_meta("name")) == (passages, state, "value")


def test_threads_share_one_index(index, put_texts):
    errors = []

    def work(name: str) -> None:
        try:
            for number in range(20):
                put_texts(index, name, *(f"{name} {number} {part}" for part in range(number % 3 + 1)))
                assert index.document(name).num_passages == len(index.document_passages(name)) == number % 3 + 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"doc {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (index.num_documents, index.revision) == (4, 80)


WRITER = """
import sys
from pathlib import Path
from epic_rag.retrievers import Passage, PassageIndex
with PassageIndex(Path(sys.argv[1])) as index:
    for number in range(25):
        fields = {"source": sys.argv[2], "title": "", "token_ids": [1]}
        passages = [Passage.create(position=p, text=f"{number} {p}", **fields) for p in range(3)]
        index.put_document(sys.argv[2], str(number), "t", "o", passages)
"""


def test_processes_share_one_folder_from_its_first_moment(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "shared")]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in ("a", "b", "c")]
    assert [writer.communicate()[1] for writer in writers] == ["", "", ""]
    with PassageIndex(tmp_path / "shared") as index:
        assert (list(index.sources()), index.revision) == (["a", "b", "c"], 75)
        assert all(passage.text.startswith("24 ") for passage in index.passages())


def test_a_killed_writer_leaves_whole_documents(tmp_path):
    endless = WRITER.replace("range(25)", "range(10**9)").replace("index.put", "print(number, flush=True); index.put")
    writer = subprocess.Popen([sys.executable, "-c", endless, str(tmp_path), "a"], stdout=subprocess.PIPE, text=True)
    for line in writer.stdout:
        if int(line) >= 20:
            break
    writer.kill()
    writer.wait()
    writer.stdout.close()
    with PassageIndex(tmp_path) as index:
        numbers = {passage.text.split()[0] for passage in index.passages()}
        assert numbers == {index.document("a").digest}
        assert index.num_passages == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_a_connection_of_its_own(tmp_path, put_texts):
    with PassageIndex(tmp_path) as index:
        put_texts(index, "a", "one")
        child = os.fork()
        if child == 0:
            try:
                put_texts(index, "b", "two")
            finally:
                os._exit(0 if index.num_documents == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        put_texts(index, "c", "three")
        assert (list(index.sources()), index.revision) == (["a", "b", "c"], 3)


def test_a_folder_is_made_with_its_parents(tmp_path):
    folder = tmp_path / "a" / "b"
    with PassageIndex(folder) as index:
        assert index.folder == folder
    assert Path(folder / "index.sqlite").is_file()
