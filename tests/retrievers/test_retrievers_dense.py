import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_tests.integration_tests import RetrieversIntegrationTests
from word_embeddings import WordEmbeddings

from epic_rag.retrievers import DenseIndex, EmbedderError, PassageIndex, PassageRetriever
from epic_rag.retrievers import dense as dense_module
from epic_rag.retrievers import embedding as embedding_module

WORDS = ("red", "blue", "green", "fish", "bird", "cat", "swim", "fly", "sleep", "sea", "sky", "old", "new")


@pytest.fixture
def index(tmp_path, put_texts):
    with PassageIndex(tmp_path) as index:
        put_texts(index, "animals", "red fish swim", "blue birds fly", "white cats sleep")
        put_texts(index, "lands", "日本語の文書です", "fish are caught at sea")
        yield index


def texts(found):
    return [passage.text for passage, _ in found]


def brute_force(index, embeddings, query, k, kept=lambda passage: True):
    """Cosine of every passage, written out."""
    passages = list(index.passages())
    vectors = np.array([embeddings.vector(passage.text) for passage in passages])
    question = np.array(embeddings.vector(query))
    cosines = vectors @ question / np.linalg.norm(vectors, axis=1) / np.linalg.norm(question)
    order = [row for row in np.argsort(-cosines, kind="stable") if kept(passages[row])]
    return [(passages[row], cosines[row]) for row in order[:k]]


def check(found, expected):
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert {p.id for p, _ in found} == {p.id for p, _ in expected}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**20), st.integers(1, 60))
def test_search_is_exact(put_texts, seed, k):
    draw, embeddings = random.Random(seed), WordEmbeddings()
    with PassageIndex(None) as index:
        for number in range(draw.randint(1, 6)):
            put_texts(index, f"d{number}", *{" ".join(draw.choices(WORDS, k=4)) for _ in range(draw.randint(1, 9))})
        query = " ".join(draw.choices(WORDS, k=2))
        found = DenseIndex(index, embeddings).search(query, k)
        expected = brute_force(index, embeddings, query, k)
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert len(found) == min(k, index.num_passages)


def test_a_filter_comes_before_the_ranking(index):
    embeddings = WordEmbeddings()
    found = DenseIndex(index, embeddings).search("red fish", 2, {"source": "l*"})
    check(found, brute_force(index, embeddings, "red fish", 2, lambda passage: passage.source == "lands"))
    assert {passage.source for passage, _ in found} == {"lands"}
    assert DenseIndex(index, embeddings).search("fish", 3, {"source": "nothing"}) == []
    with pytest.raises(ValueError, match=r"where names 'author'; fields of a passage are source, title"):
        DenseIndex(index, embeddings).search("fish", 3, {"author": "x"})


@pytest.mark.parametrize(("query", "k"), [("", 3), (" \n", 3), ("fish", 0), ("fish", -1)])
def test_nothing_asked_finds_nothing(index, query, k):
    assert DenseIndex(index, WordEmbeddings()).search(query, k) == []


def test_an_empty_index_finds_nothing_and_fills_later(put_texts):
    with PassageIndex(None) as index:
        dense = DenseIndex(index, WordEmbeddings())
        assert dense.search("fish", 3) == []
        put_texts(index, "a", "fish")
        assert texts(dense.search("fish", 3)) == ["fish"]
        index.delete_document("a")
        assert dense.search("fish", 3) == []


def test_a_lone_surrogate_is_no_error(index):
    assert len(DenseIndex(index, WordEmbeddings()).search("fish \ud800", 2)) == 2


def test_only_new_texts_are_embedded(index, put_texts):
    embeddings = WordEmbeddings()
    DenseIndex(index, embeddings).refresh()
    assert sorted(embeddings.asked) == sorted(passage.text for passage in index.passages())
    embeddings.asked.clear()
    DenseIndex(index, embeddings).refresh()
    assert embeddings.asked == ["red fish swim"]  # tells that the embedder is the same
    embeddings.asked.clear()
    put_texts(index, "animals", "a new first one", "red fish swim", "blue birds fly")  # moved, and one removed
    dense = DenseIndex(index, embeddings)
    dense.refresh()
    assert embeddings.asked == ["a new first one", "red fish swim"]  # the second tells that the embedder is the same
    check(dense.search("fish", 9), brute_force(index, embeddings, "fish", 9))
    assert len(dense.search("white cats", 9)) == 5


def test_another_model_of_the_same_name_starts_anew_though_no_text_is_new(index):
    DenseIndex(index, WordEmbeddings(salt="one")).refresh()
    other = WordEmbeddings(salt="two")
    dense = DenseIndex(index, other)
    for _ in range(2):
        check(dense.search("fish", 3), brute_force(index, other, "fish", 3))
    assert other.asked == ["red fish swim", *(passage.text for passage in index.passages())]


@pytest.mark.parametrize("is_new_process", [True, False])
def test_vectors_of_an_index_made_anew_outlive_those_of_the_one_before(index, tmp_path, put_texts, is_new_process):
    for number in range(9):
        put_texts(index, f"d{number}", f"text number {number}")
    DenseIndex(index, WordEmbeddings()).refresh()
    index.close()
    for file in tmp_path.glob("index.sqlite*"):
        file.unlink()
    embeddings = WordEmbeddings()
    with PassageIndex(tmp_path) as anew:
        dense = DenseIndex(anew, embeddings)
        for number in range(3):
            embeddings.asked.clear()
            dense = DenseIndex(anew, embeddings) if is_new_process else dense
            put_texts(anew, f"new {number}", f"new text {number}")
            check(dense.search("new text", 1), brute_force(anew, embeddings, "new text", 1))
            assert next(text for text in embeddings.asked if text.startswith("new text")) == f"new text {number}"
            assert len(embeddings.asked) <= 2, "the new text and a sample"


def test_a_reader_prefers_its_own_vectors_to_those_of_an_index_before(index, tmp_path, put_texts):
    DenseIndex(index, WordEmbeddings()).refresh()
    (tmp_path / "dense" / str(index.revision)).rename(tmp_path / "dense" / "5000")
    manifest = tmp_path / "dense" / "5000" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"revision": 5000}))
    embeddings = WordEmbeddings()
    with PassageIndex(tmp_path, read_only=True) as reader:
        dense = DenseIndex(reader, embeddings)
        put_texts(index, "a", "a whale")
        assert texts(dense.search("whale", 1)) == ["a whale"]
        put_texts(index, "b", "a zebra")
        embeddings.asked.clear()
        assert texts(dense.search("zebra", 1)) == ["a zebra"]
    assert "a whale" not in embeddings.asked[:1]
    assert len(embeddings.asked) <= 2, "the new text and a sample"


def test_removed_documents_cost_no_embedding(index, tmp_path):
    embeddings = WordEmbeddings()
    DenseIndex(index, embeddings).refresh()
    embeddings.asked.clear()
    index.delete_document("lands")
    dense = DenseIndex(index, embeddings)
    assert texts(dense.search("fish", 9))[0] == "red fish swim"
    assert embeddings.asked == []
    assert len(np.load(tmp_path / "dense" / str(index.revision) / "vectors.npy")) == 3


def test_equal_texts_are_embedded_once(put_texts):
    embeddings = WordEmbeddings()
    with PassageIndex(None) as index:
        put_texts(index, "a", "same", "same")
        put_texts(index, "b", "same")
        found = DenseIndex(index, embeddings).search("same", 5)
    assert embeddings.asked == ["same"]
    assert [(passage.source, passage.position) for passage, _ in found] == [("a", 0), ("a", 1), ("b", 0)]


NAMED = WordEmbeddings("another name", salt="other")
SWAPPED = WordEmbeddings("words", salt="same name, other vectors")
LONGER = WordEmbeddings("words", dimension=64)


@pytest.mark.parametrize(
    ("other", "grows"), [(NAMED, False), (NAMED, True), (SWAPPED, True), (LONGER, False), (LONGER, True)]
)
def test_another_embedder_starts_anew(index, put_texts, other, grows):
    DenseIndex(index, WordEmbeddings()).refresh()
    if grows:  # a swapped model of the same name shows only where something is embedded
        put_texts(index, "a first one", "more fish")
        put_texts(index, "z last", "the last bird")
    check(DenseIndex(index, other).search("blue birds", 9), brute_force(index, other, "blue birds", 9))


def test_a_change_is_found_out_even_when_old_texts_come_last(put_texts):
    with PassageIndex(None) as index:
        put_texts(index, "z", "old text")
        dense = DenseIndex(index, WordEmbeddings())
        dense.refresh()
        dense._embedder._embeddings = other = WordEmbeddings(salt="other")
        put_texts(index, "a", *(f"new {number}" for number in range(embedding_module._BATCH_TEXTS)))
        check(dense.search("old text", 3), brute_force(index, other, "old text", 3))


class Broken(WordEmbeddings):
    def __init__(self, answer, **options):
        super().__init__(**options)
        self.answer = answer

    def embed_documents(self, texts):
        answer = self.answer(texts)
        return super().embed_documents(texts) if answer is None else answer


def fail(texts):
    raise ConnectionError("no route to host")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fail, "failed: ConnectionError: no route to host"),
        (lambda texts: [[1.0]] * (len(texts) - 1), "expected 5 vectors of one length"),
        (lambda texts: [[1.0]] * (len(texts) - 1) + [[1.0, 2.0]], "failed: ValueError"),
        (lambda texts: [[]] * len(texts), r"shape \[5, 0\]"),
        (lambda texts: [[float("nan")]] * len(texts), "not finite"),
        (lambda texts: [["x"]] * len(texts), "failed: ValueError"),
    ],
)
def test_a_broken_embedder_is_named(index, answer, message):
    with pytest.raises(EmbedderError, match=message) as error:
        DenseIndex(index, Broken(answer)).refresh()
    assert "Broken" in str(error.value)


def test_vectors_of_two_lengths_are_refused(index, monkeypatch):
    monkeypatch.setattr(embedding_module, "_BATCH_TEXTS", 3)
    embeddings = Broken(lambda texts: [[1.0] * len(texts)] * len(texts))
    with pytest.raises(EmbedderError, match="gave vectors of 3 and of 2 numbers; expected one length"):
        DenseIndex(index, embeddings).refresh()


def test_questions_of_another_length_than_passages(index):
    embeddings = Broken(lambda texts: [[1.0, 2.0]] * len(texts))
    with pytest.raises(EmbedderError, match="gives passages 2 numbers and questions 48"):
        DenseIndex(index, embeddings).search("fish", 1)


def test_a_text_without_a_vector_is_far_from_everything(put_texts):
    embeddings = WordEmbeddings()
    embeddings.vector = lambda text: [0.0, 0.0] if text == "nothing" else [1.0, 0.0]
    with PassageIndex(None) as index:
        put_texts(index, "a", "nothing", "something")
        found = DenseIndex(index, embeddings).search("something", 2)
    assert [(passage.text, score) for passage, score in found] == [("something", 1.0), ("nothing", 0.0)]


def test_what_was_embedded_before_a_failure_is_kept(index, put_texts, monkeypatch):
    monkeypatch.setattr(embedding_module, "_BATCH_TEXTS", 10)
    put_texts(index, "big", *(f"text number {number}" for number in range(40)))
    calls = []

    def fail_late(texts):
        calls.append(len(texts))
        return fail(texts) if len(calls) == 3 else None

    with pytest.raises(EmbedderError):
        DenseIndex(index, Broken(fail_late, model="w")).refresh()
    again = Broken(lambda texts: None, model="w")
    dense = DenseIndex(index, again)
    dense.refresh()
    assert len(again.asked) == 45 - 20 + 1
    check(dense.search("text number 7", 5), brute_force(index, again, "text number 7", 5))


KILLED = """
import os, signal, sys
from pathlib import Path
from word_embeddings import WordEmbeddings
from epic_rag.retrievers import DenseIndex, PassageIndex
from epic_rag.retrievers import dense, embedding
embedding._BATCH_TEXTS, dense._KEPT_AT_LEAST = 10, 10
class Killed(WordEmbeddings):
    def embed_documents(self, texts):
        if len(self.asked) >= 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed_documents(texts)
DenseIndex(PassageIndex(Path(sys.argv[1])), Killed(), name="words").refresh()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_kill_loses_the_last_batches_only(index, tmp_path, put_texts):
    put_texts(index, "big", *(f"text number {number}" for number in range(60)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    embeddings = WordEmbeddings()
    dense = DenseIndex(index, embeddings, name="words")
    dense.refresh()
    assert len(embeddings.asked) == 65 - 30 + 1
    check(dense.search("text number 7", 5), brute_force(index, embeddings, "text number 7", 5))


TOGETHER = """
import sys
from pathlib import Path
from word_embeddings import WordEmbeddings
from epic_rag.retrievers import DenseIndex, Passage, PassageIndex
with PassageIndex(Path(sys.argv[1])) as index:
    dense = DenseIndex(index, WordEmbeddings())
    for number in range(8):
        source = f"{sys.argv[2]} {number}"
        passage = Passage.create(source=source, position=0, title="", text=f"fish {source}", token_ids=[1])
        index.put_document(source, "d", "t", "o", [passage])
        if dense.search(f"fish {source}", 1)[0][0].source != source:
            sys.exit(source)
"""


def test_processes_that_write_and_search_at_once(index, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", TOGETHER, tmp_path, name], env=environment, stderr=subprocess.PIPE)
        for name in ("whale", "zebra")
    ]
    assert [(one.communicate()[1], one.returncode) for one in running] == [(b"", 0)] * 2
    embeddings = WordEmbeddings()
    check(DenseIndex(index, embeddings).search("fish zebra 7", 9), brute_force(index, embeddings, "fish zebra 7", 9))
    assert len(list((tmp_path / "dense").iterdir())) == 1


def cut(name):
    def harm(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) * 2 // 3])

    return harm


def turn_a_bit(folder):
    data = bytearray((folder / "vectors.npy").read_bytes())
    data[-9] ^= 16
    (folder / "vectors.npy").write_bytes(data)


def change_format(folder):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))


@pytest.mark.parametrize(
    "harm",
    [*map(cut, ("ids.npy", "keys.npy", "vectors.npy", "manifest.json")), turn_a_bit, change_format, shutil.rmtree],
)
def test_torn_or_changed_files_are_made_again(index, tmp_path, harm):
    embeddings = WordEmbeddings()
    DenseIndex(index, embeddings).refresh()
    harm(tmp_path / "dense" / str(index.revision))
    embeddings.asked.clear()
    check(DenseIndex(index, embeddings).search("fish", 3), brute_force(index, embeddings, "fish", 3))
    assert len(embeddings.asked) == 5
    embeddings.asked.clear()
    DenseIndex(index, embeddings).refresh()
    assert embeddings.asked == ["red fish swim"]


def test_read_only_works_in_memory_and_writes_nothing(index, tmp_path):
    with PassageIndex(tmp_path, read_only=True) as reader:
        assert len(DenseIndex(reader, WordEmbeddings()).search("fish", 3)) == 3
    assert not (tmp_path / "dense").exists()


def test_another_folder_and_a_mapped_matrix(index, tmp_path):
    DenseIndex(index, WordEmbeddings(), tmp_path / "elsewhere").refresh()
    dense = DenseIndex(index, WordEmbeddings(), tmp_path / "elsewhere")
    assert len(dense.search("fish", 3)) == 3
    assert isinstance(dense._snapshot.vectors.matrix, np.memmap)
    assert not (tmp_path / "dense").exists()


def test_a_document_put_by_another_handle_is_seen(index, tmp_path, put_texts):
    dense = DenseIndex(index, WordEmbeddings())
    dense.refresh()
    with PassageIndex(tmp_path) as other:
        put_texts(other, "new", "a zebra")
        DenseIndex(other, WordEmbeddings()).refresh()
    assert texts(dense.search("zebra", 1)) == ["a zebra"]


def test_vectors_of_another_process_are_used(index, tmp_path, put_texts):
    embeddings = WordEmbeddings()
    dense = DenseIndex(index, embeddings)
    dense.refresh()
    with PassageIndex(tmp_path) as other:
        put_texts(other, "new", "a zebra", "a lion")
        DenseIndex(other, WordEmbeddings()).refresh()
        put_texts(other, "newer", "a whale")
    embeddings.asked.clear()
    assert texts(dense.search("zebra", 1)) == ["a zebra"]
    assert embeddings.asked == ["a whale", "red fish swim"]


def test_an_index_that_changes_while_it_is_embedded(index, put_texts, tmp_path):
    names = iter(range(99))
    embeddings = Broken(lambda texts: put_texts(index, f"n{next(names)}", f"fish {next(names)}") and None)
    dense = DenseIndex(index, embeddings)
    assert len(dense.search("fish", 99)) == 5 + dense_module._MAX_BUILDS - 1
    embeddings.answer = lambda texts: None
    assert len(dense.search("fish", 99)) == 5 + dense_module._MAX_BUILDS
    assert len(embeddings.asked) - len(set(embeddings.asked)) <= dense_module._MAX_BUILDS  # the samples


def test_threads_wait_for_one_build(index):
    embeddings, found = WordEmbeddings(), []
    dense = DenseIndex(index, embeddings)
    threads = [threading.Thread(target=lambda: found.append(texts(dense.search("fish", 3)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(one == found[0] for one in found)
    assert len(embeddings.asked) == 5


def test_progress_rises_to_the_end(index):
    told = []
    DenseIndex(index, WordEmbeddings()).refresh(lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (5, 5)


class TestStandard(RetrieversIntegrationTests):
    """LangChain's own suite."""

    @pytest.fixture(autouse=True)
    def _make_search(self, index):
        self._search = DenseIndex(index, WordEmbeddings())

    @property
    def retriever_constructor(self):
        return PassageRetriever

    @property
    def retriever_constructor_params(self):
        return {"search": self._search}

    @property
    def retriever_query_example(self):
        return "fish"
