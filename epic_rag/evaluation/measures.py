"""What is measured of one answer: distances between next-token distributions, and words in common."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

_CJK = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
"""Written without spaces: each letter counts as a word, as in MLQA (arXiv 1910.07475)."""


def kl(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference || other) of each row, nats.

    Args:
        reference: `[A, V]` log probabilities.
        other: `[A, V]` log probabilities.

    Returns:
        `[A]`, at least 0: what rounding leaves below is cut off.
    """
    return (reference.exp() * (reference - other)).sum(-1).clamp_min(0.0)


def agreement(reference: Tensor, other: Tensor) -> float:
    """Share of the rows (`[A, V]` each) whose largest entry is the same."""
    return float((reference.argmax(-1) == other.argmax(-1)).double().mean())


def token_nll(log_probabilities: Tensor, answer: Tensor) -> Tensor:
    """Negative log-likelihood of each answer token, nats, `[A]`.

    Args:
        log_probabilities: `[A, V]`.
        answer: `[A]` int64.
    """
    return -log_probabilities.gather(1, answer[:, None])[:, 0]


def is_first(gold: float, others: Sequence[float]) -> float:
    """1 where the gold answer's mean log-likelihood is above all others; a tie is wrong."""
    return float(all(gold > other for other in others))


def exact_match(answer: str, answers: Sequence[str]) -> float:
    """1 where the normalised answer is one of `answers` (SQuAD, arXiv 1606.05250)."""
    return float(any(_words(answer) == _words(gold) for gold in answers))


def f1(answer: str, answers: Sequence[str]) -> float:
    """Words in common with the best of `answers`, as F1 (SQuAD, arXiv 1606.05250)."""
    return max(_overlap(_words(answer), _words(gold)) for gold in answers)


def contains(answer: str, answers: Sequence[str]) -> float:
    """1 where one of `answers` stands in the answer as whole words, both normalised."""
    text = f" {' '.join(_words(answer))} "
    return float(any(f" {' '.join(words)} " in text for words in map(_words, answers) if words))


def rouge_l(answer: str, answers: Sequence[str]) -> float:
    """F1 over the longest common subsequence of words with the best of `answers` (ROUGE-L, arXiv W04-1013)."""
    return max(_rouge(_spoken(answer), _spoken(gold)) for gold in answers)


def recall(answer: str, parts: Sequence[str]) -> float:
    """Share of `parts` that stand in the answer, in any order: what RULER counts (arXiv 2404.06654)."""
    return sum(contains(answer, [part]) for part in parts) / len(parts)


def answer_measures(answer: str, answers: Sequence[str], parts: Sequence[str] = ()) -> dict[str, float]:
    """All measures of a greedy answer, by name; `recall` only where there are parts."""
    measures = {"em": exact_match, "f1": f1, "contains": contains, "rouge_l": rouge_l}
    values = {name: measure(answer, answers) for name, measure in measures.items()}
    return values | {"recall": recall(answer, parts)} if parts else values


def _words(text: str) -> list[str]:
    """SQuAD's normalisation: no case, punctuation of any script or articles."""
    plain = "".join(c for c in text.lower() if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    return _CJK.sub(r" \1 ", re.sub(r"\b(a|an|the)\b", " ", plain)).split()


def _spoken(text: str) -> list[str]:
    """Words without case and punctuation, articles included."""
    return _CJK.sub(r" \1 ", re.sub(r"[\W_]+", " ", text.lower())).split()


def _overlap(got: list[str], wanted: list[str]) -> float:
    common = sum((Counter(got) & Counter(wanted)).values())
    if not got or not wanted:
        return float(got == wanted)
    return 2 * common / (len(got) + len(wanted))


def _rouge(got: list[str], wanted: list[str]) -> float:
    common = _longest_common(got, wanted)
    return 2 * common / (len(got) + len(wanted)) if common else 0.0


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, candidate in enumerate(other, 1):
            diagonal, row[place] = row[place], diagonal + 1 if word == candidate else max(row[place], row[place - 1])
    return row[-1]
