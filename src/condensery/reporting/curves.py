"""A picture of the training of a run: one panel for each stage, with the parts of its loss and its validation.

Lines are told apart by dashes, width and shade, so that the picture is readable without colour.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.files import atomic, open_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# The lines of a panel from the heaviest to the lightest: column, label, dashes, width, colour (the Okabe-Ito palette).
LOSSES: tuple[tuple[str, str, Any, float, str], ...] = (
    ("train/loss", "loss", "-", 1.8, "#000000"),
    ("train/mlm_head", "MLM, head", (0, (5, 1.5)), 1.4, "#0072B2"),
    ("train/mlm_late", "MLM, late", (0, (1, 1.2)), 1.6, "#D55E00"),
    ("train/contrast", "contrast", (0, (6, 1.5, 1, 1.5)), 1.4, "#009E73"),
)
VALIDATION = ("val/mrr@10", "validation MRR@10", "#7A3E8E")
COLUMNS = 4
POINTS = 60  # a line with more points is smoothed; the raw one stays visible, faintly


@dataclass(frozen=True)
class Curve:
    """One logged value over optimisation steps (both (points,))."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def read_curves(path: Path) -> dict[str, Curve]:
    """The columns of a ``metrics.csv`` as Lightning's CSVLogger writes it, without their empty cells.

    Where a resumed run logged a step again, the later row counts. A row cut off by a crash is left out. Raises
    ``UserError`` when the file has no column ``step``.
    """
    points: dict[str, dict[float, float]] = {}
    with open_text(path) as stream:
        reader = csv.DictReader(stream)
        if "step" not in (reader.fieldnames or ()):
            raise UserError(f"{path}: no column 'step', this is not a metrics.csv")
        for row in reader:
            step = _number(row["step"])
            if step is None:
                continue
            for name, text in row.items():
                value = _number(text)
                if name and value is not None:
                    points.setdefault(name, {})[step] = value
    curves = {}
    for name, found in points.items():
        pairs = np.array(sorted(found.items()))
        curves[name] = Curve(pairs[:, 0], pairs[:, 1])
    return curves


def _number(text: object) -> float | None:
    try:
        value = float(text) if isinstance(text, str) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def draw_curves(stages: Mapping[str, Path], picture: Path) -> None:
    """Draw the training of ``stages`` (name -> metrics.csv, in the order of the recipe) into a PNG.

    Raises ``UserError`` when there is no stage or a file is missing.
    """
    if not stages:
        raise UserError("curves: no training stage to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not through pyplot: no global state, no window system, nothing to close.
    across = min(COLUMNS, len(stages)) if len(stages) != 4 else 2
    down = math.ceil(len(stages) / across)
    figure = Figure(figsize=(max(4.2 * across, 6.0), 3.1 * down + 0.7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    curves = {name: read_curves(path) for name, path in stages.items()}
    highest = max((found[VALIDATION[0]].values.max() for found in curves.values() if VALIDATION[0] in found), default=0)
    handles: dict[str, Line2D] = {}
    for panel, (name, found) in zip(panels, curves.items(), strict=False):
        handles |= _draw_stage(panel, name, found, 100 * float(highest))
    for panel in panels[len(stages) :]:
        panel.set_visible(False)
    _legend(figure, handles)
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.08)  # type: ignore[union-attr,call-arg]
    with atomic(picture) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _legend(figure: "Figure", handles: dict[str, "Line2D"]) -> None:
    """One legend for all panels, in a fixed order."""
    order = [label for _, label, *_ in LOSSES] + [VALIDATION[1]]
    labels = [label for label in order if label in handles]
    if labels:
        shown = [handles[label] for label in labels]
        fitting = min(len(labels), int(figure.get_figwidth() / 1.9))
        figure.legend(shown, labels, loc="outside lower center", ncols=fitting, frameon=False, handlelength=3.2)


def _draw_stage(panel: "Axes", name: str, curves: dict[str, Curve], percent: float) -> dict[str, "Line2D"]:
    """Draw one stage; returns its lines by label. ``percent`` is the highest validation of all stages."""
    handles: dict[str, Line2D] = {}
    panel.set_title(name, fontsize=11, loc="left", fontweight="bold")
    panel.set_xlabel("optimisation step", fontsize=9)
    panel.tick_params(labelsize=8)
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    losses = [line for line in LOSSES if line[0] in curves]
    if len(losses) == 2:  # the total and its only part are the same line
        losses = losses[:1] if losses[0][0] == "train/loss" else losses
    for column, label, dashes, width, colour in losses:
        curve = curves[column]
        smooth = smoothed(curve.values)
        if len(curve.values) > POINTS:
            panel.plot(curve.steps, curve.values, color=colour, linewidth=0.5, alpha=0.25)
        mark = "o" if len(curve.values) == 1 else None
        (handles[label],) = panel.plot(
            curve.steps, smooth, linestyle=dashes, linewidth=width, color=colour, label=label, marker=mark
        )
    if losses:
        panel.set_ylabel("loss", fontsize=9)
        panel.set_ylim(*_limits([smoothed(curves[line[0]].values) for line in losses]))
    if VALIDATION[0] in curves:
        handles[VALIDATION[1]] = _draw_validation(panel, curves[VALIDATION[0]], percent)
    if not handles:
        panel.text(0.5, 0.5, "nothing was logged", transform=panel.transAxes, ha="center", color="#555555")
    return handles


def _draw_validation(panel: "Axes", curve: Curve, highest: float) -> "Line2D":
    """Validation on an axis of its own, the same in all panels, with the last value written at its point."""
    _, label, colour = VALIDATION
    side = panel.twinx()
    percent = 100 * curve.values
    (line,) = side.plot(curve.steps, percent, color=colour, marker="o", markersize=3.5, linewidth=1.0, label=label)
    side.set_ylabel(f"{label} (%)", fontsize=9)
    side.tick_params(labelsize=8)
    side.spines[["top", "left"]].set_visible(False)
    side.set_ylim(0, max(1.0, 1.2 * highest))
    side.annotate(
        f"{percent[-1]:.1f}", (curve.steps[-1], percent[-1]), xytext=(0, 5), textcoords="offset points",
        ha="right", fontsize=8, color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )  # fmt: skip
    return line


def _limits(lines: list[NDArray[np.float64]]) -> tuple[float, float]:
    """From 0 or just below the lowest value to just above the highest."""
    low, high = min(float(line.min()) for line in lines), max(float(line.max()) for line in lines)
    low = 0.0 if low >= 0 and low < 0.5 * high else low
    room = 0.06 * (high - low) or 1.0
    return (low if low == 0 else low - room), high + room


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A centred running mean over about a fiftieth of the points; shorter at the ends, none for few points."""
    if len(values) <= POINTS:
        return values
    half = max(1, len(values) // 100)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    reach = np.minimum(half, np.minimum(middle, len(values) - 1 - middle))
    smooth: NDArray[np.float64] = (sums[middle + reach + 1] - sums[middle - reach]) / (2 * reach + 1)
    return smooth
