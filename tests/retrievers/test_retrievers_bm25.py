import math

import pytest

from epic_rag.retrievers import Passage
from epic_rag.retrievers.bm25 import Bm25


def make(*texts: str) -> list[Passage]:
    return [Passage(f"id{n:02}", "s", n, "", text, ()) for n, text in enumerate(texts)]


def reference(texts: list[list[str]], query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Lucene's BM25, written out."""
    average = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in query:
            frequency, containing = text.count(word), sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
            score += idf * frequency / (frequency + k1 * (1 - b + b * len(text) / average))
        scores.append(score)
    return scores


def test_scores_are_those_of_the_formula():
    texts = ["red fish blue fish", "one fish", "blue bird", "green tree tall tree tree", "nothing here"]
    expected = reference([text.split() for text in texts], ["fish", "blue", "tree"])
    found = dict(Bm25.build(make(*texts)).top(["fish", "blue", "tree"], 10))
    assert found == pytest.approx({f"id{n:02}": score for n, score in enumerate(expected) if score > 0}, rel=1e-5)


@pytest.mark.parametrize("texts", [[], [""], ["...", "!"]])
def test_nothing_to_search_finds_nothing(texts, tmp_path):
    built = Bm25.build(make(*texts))
    built.save(tmp_path)
    for scores in (built, Bm25.load(tmp_path)):
        assert scores.top(["fish"], 3) == []
        assert len(scores.ids) == len(texts)


def test_k_beyond_the_passages_and_passages_without_words():
    scores = Bm25.build(make("fish", "", "fish fish", "bird"))
    assert [name for name, _ in scores.top(["fish"], 100)] == ["id02", "id00"]
    assert len(scores.top(["fish"], 1)) == 1
    assert scores.top(["fish"], 0) == scores.top([], 5) == scores.top(["unknown"], 5) == []


@pytest.mark.parametrize("k", [1, 3, 7, 49, 50])
def test_equal_scores_keep_the_order_of_the_passages(k):
    scores = Bm25.build(make(*["same words"] * 49, "same words same words"))
    found = [name for name, _ in scores.top(["same"], k)]
    assert found == ["id49", *(f"id{n:02}" for n in range(49))][:k]


def test_saved_scores_are_mapped_and_equal(tmp_path):
    built = Bm25.build(make("red fish", "blue fish", "日本語の本"))
    built.save(tmp_path)
    loaded = Bm25.load(tmp_path)
    for query in (["fish"], ["red", "fish"], ["日本"]):
        assert loaded.top(query, 5) == built.top(query, 5) != []
    assert type(loaded.ids).__name__ == type(loaded.model.scores["data"]).__name__ == "memmap"


def test_ids_and_scores_of_different_builds_are_refused(tmp_path):
    Bm25.build(make("red fish")).save(tmp_path)
    ids = (tmp_path / "ids.npy").read_bytes()
    Bm25.build(make("red fish", "blue fish")).save(tmp_path)
    (tmp_path / "ids.npy").write_bytes(ids)
    with pytest.raises(ValueError, match="2 passages and 1 ids"):
        Bm25.load(tmp_path)


def test_the_library_keeps_its_debug_lines_to_itself(caplog):
    Bm25.build(make("red fish"))
    assert [record for record in caplog.records if record.name.startswith("bm25s")] == []
