"""Draw the training curves of a run: one panel per training stage, with the parts of the loss and the validation metric."""

import csv
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.reporting.drawing import STYLES, Figure, canvas, legend, save, with_room
from condensery.system.files import check_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

LOSS, SCORE = "train/loss", "val/mrr@10"  # columns of metrics.csv
LOSSES = {  # the lines of a panel, from the thickest to the thinnest
    LOSS: ("loss", STYLES[0]),
    "train/mlm_head": ("MLM, head", STYLES[1]),
    "train/mlm_late": ("MLM, late", STYLES[2]),
    "train/contrast": ("contrast", STYLES[3]),
}
VALIDATION, VALIDATION_COLOUR = "validation MRR@10", STYLES[4].colour
COLUMNS = 2
POINTS = 60  # a line with more points is smoothed, and the raw line is drawn faintly


@dataclass(frozen=True)
class Curve:
    """A logged value as a function of the optimisation step. ``steps`` and ``values``: float64 (points,)."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def read_curves(path: Path) -> dict[str, Curve]:
    """Read the columns of a ``metrics.csv`` that Lightning's CSVLogger wrote, without empty cells.

    If a resumed run logged a step again, the later row is used. A row truncated by a crash is left out.

    Returns:
        Column name -> curve.

    Raises:
        UserError: the file is missing or has no column ``step``.
    """
    points: dict[str, dict[float, float]] = {}
    check_file(path)
    with open(path, encoding="utf-8", newline="") as stream:
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
    return {name: Curve(*np.array(sorted(by_step.items())).T) for name, by_step in points.items()}


def _number(text: object) -> float | None:
    with suppress(ValueError):
        return float(text) if isinstance(text, str) and math.isfinite(float(text)) else None
    return None


def draw_curves(stages: Mapping[str, Path], stem: Path) -> Figure:
    """Draw the training curves of ``stages`` (name -> metrics.csv, in the order of the recipe) into ``stem``.png and .svg.

    Raises ``UserError`` if there is no stage or if a file is missing.
    """
    if not stages:
        raise UserError("curves: no training stage to draw")
    curves = {name: read_curves(path) for name, path in stages.items()}
    highest = max((columns[SCORE].values.max() for columns in curves.values() if SCORE in columns), default=0)
    across = min(COLUMNS, len(stages))
    down = math.ceil(len(stages) / across)
    with canvas(2.1 * down + 0.6, width=3.0 * max(2, across)) as drawn:
        panels = drawn.subplots(down, across, squeeze=False).flatten()
        handles: dict[str, Line2D] = {}
        for panel, (name, columns) in zip(panels, curves.items(), strict=False):
            handles |= _draw_stage(panel, name, columns, 100 * float(highest))
        for panel in panels[len(stages) :]:
            panel.set_visible(False)
        labels = [label for label in (*(label for label, _ in LOSSES.values()), VALIDATION) if label in handles]
        legend(drawn, [handles[label] for label in labels], labels)
        title = "Training"
        caption = "Losses (nats) and validation MRR@10 on a sampled sub-corpus, of each training stage by step."
        return Figure(stem.name, title, caption, save(drawn, stem, title))


def _draw_stage(panel: "Axes", name: str, curves: dict[str, Curve], percent: float) -> dict[str, "Line2D"]:
    """Draw one stage, and return its lines by label. ``percent``: highest validation metric of all stages, in percent."""
    from matplotlib.ticker import MaxNLocator

    handles: dict[str, Line2D] = {}
    panel.set_title(name)
    panel.set_xlabel("optimisation step")
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    losses = losses_of(curves)
    for column in losses:
        curve, (label, style) = curves[column], LOSSES[column]
        look: dict[str, Any] = {"linestyle": style.dashes, "linewidth": style.width, "color": style.colour}
        if len(curve.values) > POINTS:
            panel.plot(curve.steps, curve.values, color=style.colour, linewidth=0.5, alpha=0.25)
        mark = "o" if len(curve.values) == 1 else None
        (handles[label],) = panel.plot(curve.steps, smoothed(curve.values), **look, marker=mark)
    if losses:
        panel.set_ylabel("loss (nats)")
        panel.set_ylim(*_limits([smoothed(curves[column].values) for column in losses]))
    if SCORE in curves:
        handles[VALIDATION] = _draw_validation(panel, curves[SCORE], percent)
    if not handles:
        panel.text(0.5, 0.5, "nothing was logged", transform=panel.transAxes, ha="center", color="#555555")
    return handles


def _draw_validation(panel: "Axes", curve: Curve, highest: float) -> "Line2D":
    """Draw the validation metric on a second y axis, and write the last value next to its point.

    ``highest``: highest value in all panels, in percent. It gives the axis the same limits in all panels.
    """
    side = panel.twinx()
    percent = 100 * curve.values
    look: dict[str, Any] = {"color": VALIDATION_COLOUR, "marker": "o", "markersize": 3.0, "linewidth": 1.0}
    (line,) = side.plot(curve.steps, percent, **look)
    side.set_ylabel("MRR@10 (%)")
    side.grid(False)
    side.spines["right"].set_visible(True)
    side.set_ylim(0, max(1.0, 1.2 * highest))
    side.annotate(
        f"{percent[-1]:.1f}", (curve.steps[-1], percent[-1]), xytext=(0, 4), textcoords="offset points",
        ha="right", fontsize=8, color=VALIDATION_COLOUR,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )  # fmt: skip
    return line


def _limits(lines: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the limits of an axis that fits all values.

    The axis starts at 0, or just below the lowest value if this value is at least half of the highest value.
    """
    low, high = min(float(line.min()) for line in lines), max(float(line.max()) for line in lines)
    return with_room(0.0 if low >= 0 and low < 0.5 * high else low, high)


def losses_of(curves: Mapping[str, Curve]) -> list[str]:
    """Return the loss columns of a stage, the total loss first.

    If the loss has only one part, this part equals the total and is left out.
    """
    losses = [column for column in LOSSES if column in curves]
    return losses[:1] if len(losses) == 2 and losses[0] == LOSS else losses


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a centred running mean. Its window is about a fiftieth of the points, and shorter at the ends.

    A series of at most ``POINTS`` points is returned unchanged. *Shape:* (points,) -> (points,).
    """
    if len(values) <= POINTS:
        return values
    half = max(1, len(values) // 100)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    reach = np.minimum(half, np.minimum(middle, len(values) - 1 - middle))
    return np.asarray((sums[middle + reach + 1] - sums[middle - reach]) / (2 * reach + 1))
