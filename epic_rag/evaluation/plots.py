"""Pictures of a summary: quality against the rows recomputed, and against what stays in the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from epic_rag.errors import ConfigError
from epic_rag.evaluation.method import ALWAYS, parse_method
from epic_rag.evaluation.summary import Estimate, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (("closed", "share of the KL gap closed"), ("kl", "KL to full prefill (nats per token)"))
_COLOURS = ("#0b6e99", "#c2571a", "#3d7a3a", "#7b4b94", "#b03052", "#6b6b6b", "#9a7d0a", "#1f3a5f")
_MARKERS = "osD^vPX*"


def require_matplotlib() -> None:
    """Check that pictures can be drawn.

    Raises:
        ConfigError: says what to install.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'epic-rag[eval]'")


def draw(summary: Summary, folder: Path, stem: str, title: str) -> list[Path]:
    """Draw what the summary's methods give: by rows recomputed, and by budget where some have one.

    Args:
        summary: of one task.
        folder: where PNG files are written.
        stem: how their names begin.
        title: stands above each picture.

    Returns:
        The files.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require_matplotlib()
    pictures = (
        ("rows", "rows recomputed, the question's included (% of the prompt)", by_rows(summary)),
        ("budget", "KV that stays (% of the prompt)", by_budget(summary)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    return [_picture(curves, label, title, folder / f"{stem}-{name}.png") for name, label, curves in pictures if curves]


Curve = Sequence[tuple[Estimate, Mapping[str, Estimate]]]
"""Where each method stands on the x axis, a share, and what it gives; ascending."""


def by_rows(summary: Summary) -> dict[str, Curve]:
    """Methods that evict nothing: one curve an encoding, by the share of rows computed."""
    curves: dict[str, list[tuple[Estimate, Mapping[str, Estimate]]]] = {}
    for method, estimates in _methods(summary):
        encoding, _, policy, codec = method
        if not policy and "rows" in estimates:
            label = f"{encoding}, {codec}" if codec else encoding
            curves.setdefault(label, []).append((estimates["rows"], estimates))
    return _ascending(curves)


def by_budget(summary: Summary) -> dict[str, Curve]:
    """Methods that evict: one curve a policy and what it is applied to, by the share of the prompt's KV that stays."""
    curves: dict[str, list[tuple[Estimate, Mapping[str, Estimate]]]] = {}
    for method, estimates in _methods(summary):
        encoding, selector, policy, codec = method
        if policy and "kept" in estimates:
            base = ", ".join(filter(None, (encoding, selector, codec)))
            curves.setdefault(f"{policy} ({base})", []).append((estimates["kept"], estimates))
    return _ascending(curves)


def _methods(summary: Summary) -> list[tuple[tuple[str, str, str, str], Mapping[str, Estimate]]]:
    """Encoding, selector, policy and codec of each named method, with its estimates."""
    named = {name: estimates for name, estimates in summary.methods.items() if name not in {m.name for m in ALWAYS}}
    encodings = [name.split(",")[0] for name in named]  # those of a caller's own are unknown to the parser
    parsed = {name: parse_method(name, encodings) for name in named}
    return [((m.encoding, m.selector, m.policy, m.codec), named[name]) for name, m in parsed.items()]


def _ascending(curves: Mapping[str, Sequence[tuple[Estimate, Mapping[str, Estimate]]]]) -> dict[str, Curve]:
    return {name: sorted(points, key=lambda point: point[0].value) for name, points in curves.items()}


def _picture(curves: Mapping[str, Curve], label: str, title: str, path: Path) -> Path:
    """One panel a measure, beside each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display, and leaves pyplot alone
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(_PANELS))
    for axis, (measure, heading) in zip(axes, _PANELS, strict=True):
        for number, (name, curve) in enumerate(curves.items()):
            _line(axis, measure, number, name, curve)
        _dress(axis, label, heading, measure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    handles, names = axes[0].get_legend_handles_labels()
    if not handles:
        handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    return path


def _line(axis: Axes, measure: str, number: int, name: str, curve: Curve) -> None:
    """One curve, with a standard error up and down."""
    points = [(100 * x.value, found[measure]) for x, found in curve if measure in found]
    if points:
        axis.errorbar(
            [x for x, _ in points],
            [estimate.value for _, estimate in points],
            yerr=[estimate.error or 0.0 for _, estimate in points],
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            linewidth=1.6,
            elinewidth=1,
            capsize=2.5,
        )


def _dress(axis: Axes, label: str, heading: str, measure: str) -> None:
    """Labels, and the line of a full prefill: 1 of the gap, or no distance."""
    axis.axhline(1.0 if measure == "closed" else 0.0, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    axis.set_xlabel(label)
    axis.set_ylabel(heading)
    axis.set_xlim(left=0)
    if measure == "kl":
        axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
