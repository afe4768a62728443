"""The training of one stage as a small SVG for a page: it takes the colours of the page, light or dark, and any width.

Lines are told apart by dashes and width; the caption shows each with its last value.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from condensery.reporting.curves import LOSS, LOSSES, SCORE, VALIDATION, Curve, smoothed
from condensery.reporting.markup import Attribute, Markup, joined, tag

DASHES = dict(zip(LOSSES, (("", 2.2), ("7 3", 1.6), ("2 2.5", 2.0), ("9 3 2 3", 1.6)), strict=True))  # and width
WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 300, 12, 160  # of the plot within the picture
POINTS = 160  # of a line, at most


def panel(name: str, curves: Mapping[str, Curve]) -> Markup:
    """A ``<figure>`` of the losses and the validation that a stage logged."""
    losses = [column for column in LOSSES if column in curves]
    if len(losses) == 2 and losses[0] == LOSS:  # the total and its only part are the same line
        losses = losses[:1]
    shown = [curves[column] for column in [*losses, *([SCORE] if SCORE in curves else [])]]
    if not shown:
        return tag("figure", tag("figcaption", tag("b", name), " nothing was logged"), class_="panel")
    last = max(float(curve.steps[-1]) for curve in shown)
    parts, keys = [_axis(last)], []
    if losses:
        values = [smoothed(curves[column].values) for column in losses]
        ticks = nice_ticks(min(float(v.min()) for v in values), max(float(v.max()) for v in values))
        parts.append(_scale(ticks, left=True))
        for column, line in zip(losses, values, strict=True):
            (label, _), (dashes, width) = LOSSES[column], DASHES[column]
            look = {
                "class_": f"line {column.partition('/')[2]}",
                "stroke_dasharray": dashes or None,
                "stroke_width": width,
            }
            parts.append(_line(curves[column].steps / max(last, 1.0), line, ticks, look))
            keys.append(_key(f"{label} {line[-1]:.2f}", look))
    if SCORE in curves:
        percent = 100 * curves[SCORE].values
        ticks = nice_ticks(0.0, float(percent.max()))
        look = {"class_": "line validation", "stroke_width": 1.4}
        parts.append(_scale(ticks, left=False))
        parts.append(_line(curves[SCORE].steps / max(last, 1.0), percent, ticks, look, marks=True))
        keys.append(_key(f"{VALIDATION} {percent[-1]:.1f} %", look, marks=True))
    text = f"{name}: " + ", ".join(told for told, _ in keys) + f" after {last:,.0f} steps"
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=text)
    caption = tag("figcaption", tag("b", name), tag("span", *(drawn for _, drawn in keys), class_="keys"))
    return tag("figure", caption, picture, class_="panel")


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers from at or below ``low`` to at or above ``high``; from 0 where ``low`` is near it."""
    low = 0.0 if 0 <= low < 0.5 * high else low
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 3))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 4)
    first, after = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(after, first + 2) + 1)]


def _line(
    across: NDArray[np.float64],
    values: NDArray[np.float64],
    ticks: Sequence[float],
    look: Mapping[str, Attribute],
    marks: bool = False,
) -> Markup:
    """A line over the share of the steps, and its points where they are few or to be marked."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).round().astype(int))
    up = (values[chosen] - ticks[0]) / (ticks[-1] - ticks[0])
    places = [(LEFT + (RIGHT - LEFT) * x, BOTTOM - (BOTTOM - TOP) * y) for x, y in zip(across[chosen], up, strict=True)]
    points = [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.6, class_=str(look["class_"])) for x, y in places]
    line = tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), **look)
    return joined([line, *points] if marks or len(places) == 1 else [line])


def _scale(ticks: Sequence[float], left: bool) -> Markup:
    """Numbers at the side; those of the left one have lines across the plot."""
    places = [BOTTOM - (BOTTOM - TOP) * number / (len(ticks) - 1) for number in range(len(ticks))]
    across = [tag("line", x1=LEFT, x2=RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid") for y in places if left]
    x, anchor = (LEFT - 6, "end") if left else (RIGHT + 6, "start")
    numbers = [
        tag("text", f"{tick:g}", x=x, y=f"{y + 3.5:.1f}", text_anchor=anchor, class_="" if left else "validation")
        for tick, y in zip(ticks, places, strict=True)
    ]
    return joined([*across, *numbers])


def _axis(last: float) -> Markup:
    """The steps: 0, the last one, and their name between."""
    words = ((LEFT, "start", "0"), ((LEFT + RIGHT) / 2, "middle", "optimisation step"), (RIGHT, "end", f"{last:,.0f}"))
    return joined(tag("text", text, x=x, y=BOTTOM + 18, text_anchor=anchor) for x, anchor, text in words)


def _key(text: str, look: Mapping[str, Attribute], marks: bool = False) -> tuple[str, Markup]:
    """A line as the picture has it, and its text."""
    drawn = [tag("line", x1=1, x2=27, y1=5, y2=5, **look)]
    drawn += [tag("circle", cx=14, cy=5, r=2.6, class_=str(look["class_"]))] if marks else []
    return text, tag("span", tag("svg", *drawn, viewBox="0 0 28 10", class_="key", aria_hidden="true"), f" {text}")
