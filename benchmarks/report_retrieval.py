"""The README's table of how well passages are found."""

from __future__ import annotations

from typing import Any

_METHODS = {
    "bm25s alone": "bm25s with its defaults",
    "lexical": "`bm25` (default)",
    "dense": "`dense`",
    "reciprocal ranks": "both, by reciprocal ranks",
    "hybrid": "`hybrid`",
}


def retrieval_table(result: dict[str, Any]) -> str:
    """nDCG@10 and recall@100 of each search on each data set, with standard errors over questions."""
    results = result["results"]
    titles = " | ".join(f"{name}, nDCG@10 | recall@100" for name in results)
    lines = [f"| retriever | {titles} |", f"|---|{'---|' * 2 * len(results)}"]
    for method, title in _METHODS.items():
        rows = [one["table"][method] for one in results.values()]
        cells = [_cell(row[measure]) for row in rows for measure in ("ndcg_at_10", "recall_at_100")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    differences = ", ".join(
        f"{_cell(one['table'][f'hybrid - {part}']['ndcg_at_10'], sign='+')} to `{title}` on {name}"
        for name, one in results.items()
        for part, title in (("lexical", "bm25"), ("dense", "dense"))
    )
    held_out = ", ".join(
        f"{difference * 100:+.1f} to `{title}` on {name}"
        for name, one in result["held_out"]["ndcg_at_10"].items()
        for part, title in (("lexical", "bm25"), ("dense", "dense"))
        for difference in (one[f"hybrid - {part}"],)
    )
    sizes = ", ".join(
        f"{name} {one['documents']} passages and {one['questions']} questions" for name, one in results.items()
    )
    where = (
        f"Points of 100, +- the standard error over questions; {sizes}; embeddings of "
        f"{result['settings']['embedder']}. "
        f"`hybrid`, question by question: {differences}. What meaning weighs in it was chosen on these data; chosen on "
        f"half of the questions and measured on the others: {held_out} "
        f"([retrieval.json](benchmarks/results/retrieval.json))."
    )
    return "\n".join([*lines, "", where])


def _cell(value: dict[str, float], sign: str = "") -> str:
    return f"{value['mean'] * 100:{sign}.1f} +- {value['standard_error'] * 100:.1f}"
