"""How well passages are found: nDCG@10 and recall@100 of every search, with bm25s alone as the peer.

    python -m benchmarks.bench_retrieval

Needs the data folders `cranfield` and `ir_dbpedia` (see `common.data_folder`) and the demo's embedder. A document is
one passage. BM25 and reciprocal ranks have the constants of bm25s and of the paper. What meaning weighs against words
in `hybrid` was chosen here, so `held_out` tells what that choice is worth: the weight that is best on one half of the
questions, measured on the other half, the mean over random halves.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev

import bm25s
import numpy as np

from benchmarks.common import data_folder, provenance, save
from epic_rag.model.sentence import DEMO_EMBEDDER
from epic_rag.retrievers import (
    ConvexCombination,
    DenseIndex,
    HybridIndex,
    LexicalIndex,
    Passage,
    PassageIndex,
    ReciprocalRanks,
    Search,
)
from epic_rag.searching import DEMO, load_embeddings

DATA = ("cranfield", "ir_dbpedia")
DEEP, TOP = 100, 10
WEIGHTS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
HALVES = 200

Grades = Mapping[str, int]
Measured = Mapping[str, dict[str, list[float]]]
"""Method to its figures of each question."""
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


def summary(measured: Measured) -> dict[str, object]:
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
        table[f"hybrid - {part}"] = {"ndcg_at_10": mean_and_error(paired(measured, "hybrid", part).tolist())}
    return table


def paired(measured: Measured, method: str, part: str) -> np.ndarray:
    """nDCG@10 of `method` less that of `part`, question by question."""
    return np.subtract(measured[method]["ndcg"], measured[part]["ndcg"])


def held_out(by_data: Mapping[str, Measured]) -> dict[str, object]:
    """What the choice of the weight is worth on questions it was not made on."""
    draw, chosen = np.random.default_rng(0), []
    differences: dict[str, dict[str, list[float]]] = {name: {"lexical": [], "dense": []} for name in by_data}
    gains = {name: np.array([measured[title(w)]["ndcg"] for w in WEIGHTS]) for name, measured in by_data.items()}
    for _ in range(HALVES):
        halves = {name: draw.permutation(gain.shape[1]) < gain.shape[1] // 2 for name, gain in gains.items()}
        best = int(np.argmax(sum(gain[:, halves[name]].mean(axis=1) for name, gain in gains.items())))
        chosen.append(WEIGHTS[best])
        for name, measured in by_data.items():
            for part, means in differences[name].items():
                means.append(float(paired(measured, title(WEIGHTS[best]), part)[~halves[name]].mean()))
    return {
        "halves": HALVES,
        "chosen": {str(weight): count for weight, count in sorted(Counter(chosen).items())},
        "ndcg_at_10": {
            name: {f"hybrid - {part}": fmean(means) for part, means in parts.items()}
            for name, parts in differences.items()
        },
    }


def title(weight: float) -> str:
    """The name of a hybrid in which meaning has this weight."""
    return f"hybrid, {weight:g}"


def run(name: str) -> tuple[dict[str, object], Measured]:
    """All figures of a data set, and those of each question."""
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
        parts = (lexical, dense)
        searches: dict[str, Search] = {
            "lexical": lexical,
            "dense": dense,
            "reciprocal ranks": HybridIndex(parts, ReciprocalRanks()),
            "hybrid": HybridIndex(parts),
            **{title(w): HybridIndex(parts, ConvexCombination((1 - w, w))) for w in WEIGHTS},
        }
        finds: dict[str, Find] = {"bm25s alone": plain_bm25s(rows)}
        for method, search in searches.items():
            finds[method] = lambda question, search=search: [one.source for one, _ in search.search(question, DEEP)]
        measured = {method: measure(find, questions, judged) for method, find in finds.items()}
    table = summary(measured)
    print(json.dumps({name: table}, indent=1))
    sizes = {"documents": len(rows), "questions": len(questions), "embed_seconds": embed_seconds}
    return {**sizes, "table": table}, measured


def main() -> None:
    settings = {
        "embedder": DEMO_EMBEDDER,
        "bm25s": version("bm25s"),
        "rrf_constant": ReciprocalRanks().constant,
        "dense_weight": ConvexCombination().weights[1],
        "candidates": DEEP,
    }
    results, measured = {}, {}
    for name in DATA:
        results[name], measured[name] = run(name)
    result = {"settings": settings, "results": results, "held_out": held_out(measured)}
    save("retrieval", {**provenance("benchmarks.bench_retrieval"), **result})


if __name__ == "__main__":
    main()
