"""Means, paired differences and shares against values worked out by hand."""

from __future__ import annotations

import json
from math import sqrt

import numpy as np
import pytest
from rich.console import Console

from epic_rag.evaluation.item import half
from epic_rag.evaluation.records import Record
from epic_rag.evaluation.summary import SAMPLES, Summary, benefit_kept, closed, mean_of, summarise
from epic_rag.evaluation.table import summary_table

KL = {"none,none": (0.5, 0.75, 0.25, 0.5), "warm:600,lego:4": (0.05, 0.1, 0.05, 0.2), "full": (0.0,) * 4}
NLL = {
    "full": (1.0, 2.0, 1.0, 2.0),
    "bare": (3.0, 5.0, 3.0, 3.0),
    "none,none": (2.0, 3.0, 2.0, 2.0),
    "warm:600,lego:4": (1.1, 2.1, 1.1, 2.2),
}
RANK = {"full": (1, 1, 0, 1), "bare": (0, 0, 0, 1), "none,none": (1, 0, 0, 1), "warm:600,lego:4": (1, 1, 0, 0)}
ITEMS = ("a", "b", "c", "d")


def records(**extra: tuple[float | None, ...]) -> list[Record]:
    """A record for each item and method; `extra`: measures of `full` and of the warm method, None where absent."""
    found = []
    for number, item in enumerate(ITEMS):
        for method in NLL:
            measures = {"nll": NLL[method][number], "rank4": float(RANK[method][number])}
            measures["kl"] = KL.get(method, (2.0,) * 4)[number]
            if method in ("full", "warm:600,lego:4"):
                measures |= {name: values[number] for name, values in extra.items() if values[number] is not None}
            found.append(Record(item, method, "c", "p", measures))
    return found


def test_means_differences_and_shares() -> None:
    summary = summarise(records())
    warm = summary.methods["warm:600,lego:4"]
    assert (summary.items, summary.base) == (4, "none,none")
    assert warm["kl"].value == pytest.approx(0.1)
    # deviations -.05, 0, -.05, .1: variance .015 / 3
    assert warm["kl"].error == pytest.approx(sqrt(0.015 / 3) / 2)
    assert warm["closed"].value == pytest.approx(1 - 0.1 / 0.5)
    # (3.5 - 1.625) / (3.5 - 1.5)
    assert warm["benefit_kept"].value == pytest.approx(1.875 / 2)
    # differences 0, 0, 0, -1
    assert warm["rank4_to_full"].value == pytest.approx(-0.25)
    assert warm["rank4_to_full"].error == pytest.approx(0.25)
    # differences -.45, -.65, -.2, -.3
    assert warm["kl_to_base"].value == pytest.approx(-0.4)
    assert warm["kl_to_base"].error == pytest.approx(float(np.std([0.45, 0.65, 0.2, 0.3], ddof=1)) / 2)
    assert summary.methods["none,none"]["closed"].value == 0
    assert summary.methods["full"]["closed"].value == 1
    assert summary.methods["full"]["benefit_kept"].value == 1
    assert "kl_to_full" not in summary.methods["full"]
    assert "closed" not in summary.methods["bare"]


def test_another_base() -> None:
    warm = summarise(records(), base="bare").methods["warm:600,lego:4"]
    assert warm["closed"].value == pytest.approx(1 - 0.1 / 2)
    assert warm["nll_to_base"].value == pytest.approx(1.625 - 3.5)
    assert "closed" not in summarise(records(), base="sinks,none").methods["warm:600,lego:4"]


def test_the_bootstrap_is_paired_and_seeded() -> None:
    """Three times the same: the ratio is the same whatever is drawn, though the means differ."""
    base = np.array([0.1, 0.5, 0.9, 0.2])
    draws = np.random.default_rng(0).integers(0, 4, (SAMPLES, 4))
    found = closed(base / 4, base, draws)
    assert found is not None
    assert (found.value, found.error) == pytest.approx((0.75, 0.0))
    one, two, other = (summarise(records(), seed=seed).methods["warm:600,lego:4"]["closed"] for seed in (0, 0, 1))
    assert one == two
    assert one.error != other.error


def test_the_bootstrap_is_the_spread_of_the_ratio() -> None:
    """Against the delta method, which is right for many items."""
    draw = np.random.default_rng(3)
    base = draw.uniform(0.5, 1.5, 400)
    values = base * draw.uniform(0.0, 0.4, 400)
    found = closed(values, base, draw.integers(0, 400, (SAMPLES, 400)))
    assert found is not None
    ratio = values.mean() / base.mean()
    expected = np.std(values - ratio * base, ddof=1) / base.mean() / sqrt(400)
    assert found.error == pytest.approx(expected, rel=0.1)


def test_what_cannot_be_said_is_absent() -> None:
    draws = np.zeros((10, 2), dtype=np.int64)
    assert closed(np.array([0.1, 0.1]), np.array([0.0, 0.0]), draws) is None
    assert benefit_kept(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([2.0, 2.0]), draws) is None
    assert mean_of(np.array([np.nan, np.nan])) is None
    one = mean_of(np.array([2.0, np.nan]))
    assert one is not None
    assert (one.value, one.error, one.items) == (2.0, None, 1)
    assert one.to_dict() == {"value": 2.0, "items": 1}
    assert summarise([]) == Summary(0, "none,none", {})


def test_one_item_has_no_error_and_json_holds_no_nan() -> None:
    alone = summarise([record for record in records() if record.item == "a"])
    for estimates in alone.methods.values():
        assert all(estimate.error is None for estimate in estimates.values())
    for summary in (alone, summarise(records()), summarise([])):
        assert json.loads(json.dumps(summary.to_dict(), allow_nan=False)) == summary.to_dict()


def test_a_measure_that_some_items_lack_is_over_the_others() -> None:
    warm = summarise(records(f1=(0.5, None, 1.0, None))).methods["warm:600,lego:4"]
    assert (warm["f1"].value, warm["f1"].items) == (0.75, 2)


def test_f1_where_full_is_right() -> None:
    """Items b and d: there the greedy answer of `full` contains a right one."""
    found = records(contains=(0.0, 1.0, 0.0, 1.0), f1=(0.1, 0.5, 0.1, 0.7))
    warm = summarise(found).methods["warm:600,lego:4"]["f1_where_full_right"]
    assert (warm.value, warm.items) == (pytest.approx(0.6), 2)


def test_only_items_that_every_method_has_count() -> None:
    some = [record for record in records() if (record.item, record.method) != ("b", "none,none")]
    summary = summarise(some)
    assert summary.items == 3
    assert summary.methods["warm:600,lego:4"]["closed"].value == pytest.approx(1 - 0.3 / 1.25)


def test_only_one_half() -> None:
    halves = {name: [item for item in ITEMS if half(item) == name] for name in ("tune", "report")}
    for name, items in halves.items():
        assert summarise(records(), only=name).items == len(items)  # type: ignore[arg-type]
    assert sum(map(len, halves.values())) == 4


def shown(summary: Summary, width: int | None) -> list[str]:
    console = Console(width=width or 300, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(summary_table(summary, "sheds", width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_says_what_was_found() -> None:
    title, heads, *rows = shown(summarise(records()), None)
    assert title == "sheds"
    assert heads.split("  ")[0] == "method"
    assert [row.split("  ")[0] for row in rows] == list(NLL)
    warm = next(row for row in rows if row.startswith("warm"))
    assert "0.100 ±0.035" in warm
    assert "0.94 ±" in warm
    assert "EM" not in heads


def test_a_narrow_table_loses_whole_columns() -> None:
    lines = shown(summarise(records(link_seconds=(0.1,) * 4, agree=(1.0,) * 4)), 60)
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    assert "closed" in lines[1]
    assert "link (s)" not in lines[1]
    assert "agree" not in lines[1]
