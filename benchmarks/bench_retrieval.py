"""How well passages are found: nDCG@10 and recall@100 of every search, with bm25s alone as the peer.

    python -m benchmarks.bench_retrieval

Needs the data folders `cranfield` and `ir_dbpedia` (see `common.data_folder`) and the demo's embedder. A document is
one passage. Nothing here was tuned: RRF has the constant of its paper, BM25 the constants of bm25s.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev

import bm25s
import numpy as np

from benchmarks.common import data_folder, provenance, save
from epic_rag.model.sentence import DEMO_EMBEDDER
from epic_rag.retrievers import DenseIndex, HybridIndex, LexicalIndex, Passage, PassageIndex
from epic_rag.searching import DEMO, load_embeddings

DATA = ("cranfield", "ir_dbpedia")
DEEP, TOP = 100, 10

Grades = Mapping[str, int]
Find = Callable[[str], list[str]]
"""A question to the ids of `DEEP` documents, the best first."""


def read_rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def read_judgements(name: str) -> dict[str, dict[str, int]]:
    """Gains by question, above 0 only. Cranfield's count as 1 each: its scale runs from 1, a complete answer, to 4."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for line in (data_folder(name) / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        question, document, grade = line.split("\t")
        if int(grade) > 0:
            found[question][document] = 1 if name == "cranfield" else int(grade)
    return found


def ndcg(found: Sequence[str], grades: Grades) -> float:
    """nDCG@10 with linear gains, as trec_eval computes it."""
    gained = sum(grades.get(name, 0) / math.log2(rank + 2) for rank, name in enumerate(found[:TOP]))
    best = sorted(grades.values(), reverse=True)[:TOP]
    return gained / sum(grade / math.log2(rank + 2) for rank, grade in enumerate(best))


def recall(found: Sequence[str], grades: Grades) -> float:
    """Share of the relevant documents among the first 100."""
    return len(set(found[:DEEP]) & set(grades)) / len(grades)


def text_of(row: Mapping[str, str]) -> str:
    """The title once, before the text, as ingest puts it; Cranfield's texts begin with theirs."""
    title, text = row["title"], row["text"]
    return text if text.startswith(title) else f"{title}\n\n{text}"


def plain_bm25s(rows: Sequence[Mapping[str, str]]) -> Find:
    """bm25s as its README shows it: English stop words, no stemmer, its default method."""
    model = bm25s.BM25()
    model.index(
        bm25s.tokenize([text_of(row) for row in rows], stopwords="en", show_progress=False), show_progress=False
    )

    def find(question: str) -> list[str]:
        tokens = bm25s.tokenize([question], stopwords="en", show_progress=False)
        ranked, scores = model.retrieve(tokens, k=DEEP, show_progress=False)
        return [rows[row]["id"] for row, score in zip(ranked[0], scores[0], strict=True) if score > 0]

    return find


def fill(index: PassageIndex, rows: Sequence[Mapping[str, str]]) -> None:
    for row in rows:
        passage = Passage.create(source=row["id"], position=0, title=row["title"], text=text_of(row), token_ids=())
        index.put_document(row["id"], "", "", "", [passage])


def measure(find: Find, questions: Mapping[str, str], judged: Mapping[str, Grades]) -> dict[str, list[float]]:
    """Figures of each question, in the order of `questions`."""
    result: dict[str, list[float]] = {"ndcg": [], "recall": [], "seconds": []}
    for name, question in questions.items():
        began = time.perf_counter()
        found = find(question)
        result["seconds"].append(time.perf_counter() - began)
        result["ndcg"].append(ndcg(found, judged[name]))
        result["recall"].append(recall(found, judged[name]))
    return result


def mean_and_error(values: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(values), "standard_error": stdev(values) / math.sqrt(len(values))}


def summary(measured: Mapping[str, dict[str, list[float]]]) -> dict[str, object]:
    """Means with standard errors over questions, and the paired difference of hybrid to each of its parts."""
    table: dict[str, object] = {
        name: {
            "ndcg_at_10": mean_and_error(figures["ndcg"]),
            "recall_at_100": mean_and_error(figures["recall"]),
            "seconds_per_question": median(figures["seconds"]),
        }
        for name, figures in measured.items()
    }
    for part in ("lexical", "dense"):
        paired = np.subtract(measured["hybrid"]["ndcg"], measured[part]["ndcg"]).tolist()
        table[f"hybrid - {part}"] = {"ndcg_at_10": mean_and_error(paired)}
    return table


def run(name: str) -> dict[str, object]:
    folder, embeddings = data_folder(name), load_embeddings(DEMO)
    rows, judged = read_rows(folder / "corpus.jsonl"), read_judgements(name)
    questions = {row["id"]: row["text"] for row in read_rows(folder / "queries.jsonl") if judged.get(row["id"])}
    with tempfile.TemporaryDirectory() as scratch, PassageIndex(Path(scratch)) as index:
        fill(index, rows)
        lexical, dense = LexicalIndex(index), DenseIndex(index, embeddings)
        lexical.refresh()
        began = time.perf_counter()
        dense.refresh()
        embed_seconds = time.perf_counter() - began
        searches = {"lexical": lexical, "dense": dense, "hybrid": HybridIndex((lexical, dense))}
        finds: dict[str, Find] = {"bm25s alone": plain_bm25s(rows)}
        for title, search in searches.items():
            finds[title] = lambda question, search=search: [one.source for one, _ in search.search(question, DEEP)]
        table = summary({title: measure(find, questions, judged) for title, find in finds.items()})
    print(json.dumps({name: table}, indent=1))
    return {"documents": len(rows), "questions": len(questions), "embed_seconds": embed_seconds, "table": table}


def main() -> None:
    settings = {"embedder": DEMO_EMBEDDER, "bm25s": version("bm25s"), "rrf_constant": 60, "candidates": DEEP}
    result = {"settings": settings, "results": {name: run(name) for name in DATA}}
    save("retrieval", {**provenance("benchmarks.bench_retrieval"), **result})


if __name__ == "__main__":
    main()
