"""Pictures of a summary; what is drawn is checked before it is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from epic_rag.errors import ConfigError
from epic_rag.evaluation import plots
from epic_rag.evaluation.plots import by_budget, by_rows, draw, require_matplotlib
from epic_rag.evaluation.summary import Estimate, Summary

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed: extra eval")


def estimates(rows: float, kl: float, kept: float = 1.0) -> dict[str, Estimate]:
    values = {"rows": rows, "kl": kl, "closed": 1 - kl, "kept": kept}
    return {name: Estimate(value, 0.01, 9) for name, value in values.items()}


SUMMARY = Summary(
    9,
    "none,none",
    {
        "full": estimates(1.0, 0.0),
        "bare": {"kl": Estimate(2.0, 0.1, 9)},
        "warm:600,lego:16": estimates(0.11, 0.1),
        "none,none": estimates(0.02, 1.0),
        "warm:600,none": estimates(0.02, 0.3),
        "warm:600,none,codec=int8": estimates(0.02, 0.31),
        "mine,lego:4": estimates(0.05, 0.2),
        "warm:600,lego:4,roco@50%": estimates(0.05, 0.4, 0.5),
        "warm:600,lego:4,h2o@25%": estimates(0.05, 0.9, 0.25),
        "warm:600,lego:4,roco@25%": estimates(0.05, 0.6, 0.25),
    },
)


def test_one_curve_an_encoding_by_rows() -> None:
    points = {name: [(x.value, found["kl"].value) for x, found in curve] for name, curve in by_rows(SUMMARY).items()}
    assert points == {
        "warm:600": [(0.02, 0.3), (0.11, 0.1)],
        "none": [(0.02, 1.0)],
        "warm:600, int8": [(0.02, 0.31)],
        "mine": [(0.05, 0.2)],
    }


def test_one_curve_a_policy_by_what_stays() -> None:
    points = {name: [(x.value, found["kl"].value) for x, found in curve] for name, curve in by_budget(SUMMARY).items()}
    assert points == {
        "roco (warm:600, lego:4)": [(0.25, 0.6), (0.5, 0.4)],
        "h2o (warm:600, lego:4)": [(0.25, 0.9)],
    }


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'epic-rag\[eval\]'"):
        require_matplotlib()
    with pytest.raises(ConfigError, match="matplotlib"):
        draw(SUMMARY, tmp_path, "sheds", "sheds")


@needs_matplotlib
def test_two_pictures_are_drawn(tmp_path: Path) -> None:
    drawn = draw(SUMMARY, tmp_path / "new", "sheds", "sheds, tiny")
    assert [path.name for path in drawn] == ["sheds-rows.png", "sheds-budget.png"]
    for path in drawn:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        assert width > height > 500


@needs_matplotlib
def test_without_a_policy_there_is_one_picture(tmp_path: Path) -> None:
    some = Summary(9, "none,none", {name: found for name, found in SUMMARY.methods.items() if "@" not in name})
    assert [path.name for path in draw(some, tmp_path, "sheds", "sheds")] == ["sheds-rows.png"]
    nothing = Summary(9, "none,none", {"full": SUMMARY.methods["full"]})
    assert draw(nothing, tmp_path, "sheds", "sheds") == []
