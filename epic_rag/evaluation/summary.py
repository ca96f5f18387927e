"""Records of a task put together: means, paired differences, and shares of what a full prefill gains.

* closed         share of the KL gap closed: 1 - mean kl / mean kl of the base method
* benefit_kept   benefit of the documents kept: (nll of bare - nll) / (nll of bare - nll of full), of means
* X_to_full, X_to_base   mean over the items of X less that of `full` or of the base method
* f1_where_full_right    f1 on the items where the greedy answer of `full` contains a right one

Standard errors are those of the mean over the items; of the two shares, by a paired bootstrap over the items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epic_rag.evaluation.item import Half, half
from epic_rag.evaluation.method import BARE, BASE, FULL
from epic_rag.evaluation.records import Record

SAMPLES = 2000
_COMPARED = ("kl", "agree", "nll", "rank4", "em", "f1", "contains", "rouge_l", "recall")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or a ratio of means.

    Attributes:
        value: the estimate.
        error: its standard error; None where one item alone was measured.
        items: items that it is over.
    """

    value: float
    error: float | None
    items: int

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        error = {} if self.error is None else {"standard_error": self.error}
        return {"value": self.value, **error, "items": self.items}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a task's records say.

    Attributes:
        items: items that were measured with every method.
        base: the method whose gap the others close.
        methods: estimates by method and name.
    """

    items: int
    base: str
    methods: Mapping[str, Mapping[str, Estimate]]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        methods = {
            method: {name: estimate.to_dict() for name, estimate in estimates.items()}
            for method, estimates in self.methods.items()
        }
        return {"items": self.items, "base": self.base, "methods": methods}


def summarise(
    records: Iterable[Record], *, base: str = BASE, only: Half | None = None, seed: int = 0, samples: int = SAMPLES
) -> Summary:
    """Put records together, over the items that have one of every method.

    Args:
        records: of one task.
        base: method whose gap the others close; where it was not measured, nothing is said of it.
        only: one half of the items.
        seed: of the bootstrap.
        samples: of the bootstrap.
    """
    by_method: dict[str, dict[str, Record]] = {}
    for record in records:
        if only is None or half(record.item) == only:
            by_method.setdefault(record.method, {})[record.item] = record
    common = [item for item in next(iter(by_method.values()), {}) if all(item in found for found in by_method.values())]
    table = {method: [found[item] for item in common] for method, found in by_method.items()}
    draws = np.random.default_rng(seed).integers(0, max(1, len(common)), (samples, len(common)))
    if not common:
        return Summary(0, base, {})
    methods = {name: _estimates(name, table, base, draws) for name in table}
    return Summary(len(common), base, methods)


def _estimates(
    name: str, table: Mapping[str, Sequence[Record]], base: str, draws: npt.NDArray[np.int64]
) -> dict[str, Estimate]:
    """Everything about one method."""
    own = table[name]
    measures = dict.fromkeys(measure for record in own for measure in record.measures)
    found = {measure: mean_of(_values(own, measure)) for measure in measures}
    for measure in filter(measures.__contains__, _COMPARED):
        for word, other in (("full", FULL.name), ("base", base)):
            if other in table and other != name:
                found[f"{measure}_to_{word}"] = mean_of(_values(own, measure) - _values(table[other], measure))
    if base in table and name != BARE.name:
        found["closed"] = closed(_values(own, "kl"), _values(table[base], "kl"), draws)
    if {BARE.name, FULL.name} <= set(table) and name != BARE.name:
        bare, nlls, full = (_values(records, "nll") for records in (table[BARE.name], own, table[FULL.name]))
        found["benefit_kept"] = benefit_kept(bare, nlls, full, draws)
    if FULL.name in table:
        right = _values(table[FULL.name], "contains") == 1
        found["f1_where_full_right"] = mean_of(np.where(right, _values(own, "f1"), np.nan))
    return {measure: estimate for measure, estimate in found.items() if estimate is not None}


def mean_of(values: Values) -> Estimate | None:
    """Mean and its standard error over the items that have a value; None where none has."""
    there = values[~np.isnan(values)]
    if not there.size:
        return None
    error = float(there.std(ddof=1) / np.sqrt(there.size)) if there.size > 1 else None
    return Estimate(float(there.mean()), error, int(there.size))


def closed(values: Values, base: Values, draws: npt.NDArray[np.int64]) -> Estimate | None:
    """1 - mean of `values` / mean of `base`, `[items]` each; None where there is no gap.

    `draws`: `[samples, items]`, indices of items.
    """
    return _ratio(base - values, base, draws)


def benefit_kept(bare: Values, values: Values, full: Values, draws: npt.NDArray[np.int64]) -> Estimate | None:
    """(mean of `bare` - mean of `values`) / (mean of `bare` - mean of `full`); None where documents do not help."""
    return _ratio(bare - values, bare - full, draws)


def _ratio(above: Values, below: Values, draws: npt.NDArray[np.int64]) -> Estimate | None:
    """Ratio of the means; its error by drawing items again, the same ones above and below."""
    if not below.mean() > 0:
        return None
    means = below[draws].mean(1)
    drawn = above[draws].mean(1)[means > 0] / means[means > 0]
    error = float(drawn.std(ddof=1)) if len(below) > 1 else None
    return Estimate(float(above.mean() / below.mean()), error, len(below))


def _values(records: Sequence[Record], measure: str) -> Values:
    """`[items]`, NaN where the measure is absent."""
    return np.array([record.measures.get(measure, np.nan) for record in records], dtype=np.float64)
