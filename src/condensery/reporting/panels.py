"""Draw the training curves of one stage as a small SVG for a web page.

The SVG takes the colours of the page, light or dark, and scales to any width. Lines differ in dashes and width. The caption
shows each line with its last value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from condensery.reporting.curves import LOSSES, SCORE, VALIDATION, Curve, losses_of, smoothed
from condensery.reporting.html import macros

DASHES = dict(zip(LOSSES, (("", 2.2), ("7 3", 1.6), ("2 2.5", 2.0), ("9 3 2 3", 1.6)), strict=True))  # dashes, width
WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 300, 12, 160  # edges of the plot within the picture
POINTS = 160  # maximum number of points per line


def panel(name: str, curves: Mapping[str, Curve], place: str = "") -> Markup:
    """Return a ``<figure>`` element with the losses and the validation metric that a stage logged.

    Args:
        name: name of the stage.
        curves: column of metrics.csv -> curve.
        place: HTML id of the figure; empty = no id.
    """
    losses = losses_of(curves)
    shown = [curves[column] for column in [*losses, *([SCORE] if SCORE in curves else [])]]
    if not shown:
        return Markup(macros("panel.html").empty(name, place))
    last = max(float(curve.steps[-1]) for curve in shown)
    parts: list[dict[str, Any]] = []
    if losses:
        values = [smoothed(curves[column].values) for column in losses]
        ticks = nice_ticks(min(float(v.min()) for v in values), max(float(v.max()) for v in values))
        parts.append(_scale(ticks, left=True))
        for column, line in zip(losses, values, strict=True):
            (label, _), (dashes, width) = LOSSES[column], DASHES[column]
            look = {"class": f"line {column.partition('/')[2]}", "dashes": dashes, "width": width}
            points = _points(curves[column].steps / max(last, 1.0), line, ticks)
            parts.append({"points": points, "look": look, "marks": False, "text": f"{label} {line[-1]:.2f}"})
    if SCORE in curves:
        percent = 100 * curves[SCORE].values
        ticks = nice_ticks(0.0, float(percent.max()))
        look = {"class": "line validation", "dashes": "", "width": 1.4}
        points = _points(curves[SCORE].steps / max(last, 1.0), percent, ticks)
        score = {"points": points, "look": look, "marks": True, "text": f"{VALIDATION} {percent[-1]:.1f} %"}
        parts += [_scale(ticks, left=False), score]
    text = f"{name}: " + ", ".join(part["text"] for part in parts if "text" in part) + f" after {last:,.0f} steps"
    return Markup(macros("panel.html").panel(name, place, text, (WIDTH, HEIGHT), LEFT, RIGHT, _steps(last), parts))


def nice_ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that cover ``low`` to ``high``. The first is 0 if ``low`` is near 0."""
    low = 0.0 if 0 <= low < 0.5 * high else low
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 3))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 4)
    first, after = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(after, first + 2) + 1)]


def _points(across: NDArray[np.float64], values: NDArray[np.float64], ticks: Sequence[float]) -> list[tuple[str, str]]:
    """Return the picture coordinates (x, y) of a line's points. ``across``: step / last step for each point, from 0 to 1."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).round().astype(int))
    up = (values[chosen] - ticks[0]) / (ticks[-1] - ticks[0])
    places = [(LEFT + (RIGHT - LEFT) * x, BOTTOM - (BOTTOM - TOP) * y) for x, y in zip(across[chosen], up, strict=True)]
    return [(f"{x:.1f}", f"{y:.1f}") for x, y in places]


def _scale(ticks: Sequence[float], left: bool) -> dict[str, Any]:
    """Return the tick labels of the left or right scale. The ticks of the left scale have grid lines across the plot."""
    places = [BOTTOM - (BOTTOM - TOP) * number / (len(ticks) - 1) for number in range(len(ticks))]
    x, anchor = (LEFT - 6, "end") if left else (RIGHT + 6, "start")
    return {
        "across": [f"{y:.1f}" for y in places if left],
        "numbers": [(f"{tick:g}", f"{y + 3.5:.1f}") for tick, y in zip(ticks, places, strict=True)],
        "x": x,
        "anchor": anchor,
        "class": "" if left else "validation",
    }


def _steps(last: float) -> list[tuple[float, int, str, str]]:
    """Return the texts below the plot with their positions: 0, the last step, and between them the name of the axis."""
    words = ((LEFT, "start", "0"), ((LEFT + RIGHT) / 2, "middle", "optimisation step"), (RIGHT, "end", f"{last:,.0f}"))
    return [(x, BOTTOM + 18, anchor, text) for x, anchor, text in words]
