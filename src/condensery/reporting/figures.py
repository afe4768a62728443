"""Draw the types of figures that the reproduced papers contain, and the differences of a table's rows from the baseline.

The papers' types are: a metric as a function of training-set size or steps, attention entropy by layer, and losses of
training runs. Each figure is drawn from given numbers, wherever they come from. It is written as PNG, as SVG, and as CSV with
the numbers.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.reporting.curves import Curve, smoothed
from condensery.reporting.drawing import STYLES, WIDTH, Figure, canvas, compact, legend, save, separate_ticks, with_room
from condensery.reporting.plain import one_line
from condensery.reporting.table_formats import grid
from condensery.system.files import write_text
from condensery.system.spreadsheets import csv_of, harmless

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from condensery.reporting.table import Comparison

FEW = 15  # a line of at most 15 points has a marker and an error bar at each point; a longer line has a band
MARKS = 7  # markers of a longer line
EVEN = "even attention"
BASELINE = "#888888"  # the colour of reference lines
NAME = 30  # maximum number of characters per line of a name beside an axis


@dataclass(frozen=True)
class Line:
    """One line of a figure.

    Attributes:
        label: name of the line in the legend, in one line.
        x: (points,), ascending. Empty = a constant, which is drawn across the whole panel.
        values: for each point, the value of each run (seed), at least one. A line with empty ``x`` has one point.
    """

    label: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", one_line(self.label))  # an ESC would make the SVG invalid

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over the runs at each point, (points,)."""
        return np.array([np.mean(one) for one in self.values])

    @property
    def deviation(self) -> NDArray[np.float64]:
        """Sample standard deviation (n - 1) over the runs at each point, (points,); 0 for a single run."""
        return np.array([np.std(one, ddof=1) if len(one) > 1 else 0.0 for one in self.values])


def line_of_curves(label: str, curves: Sequence[Curve], scale: float = 1.0) -> Line:
    """Build one line from the training curves of several seeds, using the steps that all seeds logged.

    ``scale``: factor by which the steps are multiplied to give the x values.
    """
    common = sorted(set.intersection(*(set(curve.steps.tolist()) for curve in curves)))
    values = [dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) for curve in curves]
    return Line(label, [scale * step for step in common], [[one[step] for one in values] for step in common])


def draw_scores(stem: Path, title: str, caption: str, panels: Mapping[str, Sequence[Line]], x_label: str) -> Figure:
    """Draw metrics as a function of a quantity on a log axis, such as the training-set size or the number of steps.

    There is one panel per metric, one above the other. Each system has one line in each panel, with error bars of one
    standard deviation over the runs.

    Args:
        stem, title, caption: path of the files without ending; title and caption of the figure.
        panels: label of the y axis -> the lines.
        x_label: label of the x axis.
    """
    labels, height = _labels(panels), 3.4 if len(panels) == 1 else 2.2 * len(panels) + 0.8
    with canvas(height + 0.14 * len(labels)) as drawn:
        lowest = _stack(drawn, title, panels, x_label, near=0.6, log=True)
        _log_axis(lowest, [place for lines in panels.values() for line in lines for place in line.x])
        return _finish(drawn, stem, title, caption, panels if len(panels) > 1 else {"": next(iter(panels.values()))})


def equal_quality(panels: Mapping[str, Sequence[Line]], reference: str, unit: str) -> str:
    """Return a Markdown table with the amount at which each line first reaches the target.

    The target is the reference's mean at its largest amount. Between two points the mean is interpolated, linearly in the
    logarithm of the amount.

    Args:
        panels: label of the metric -> lines, whose x is the amount.
        reference: label of a line; if that line is missing, or has no amount, the table is empty.
        unit: unit of the amount, such as steps.
    """
    rows = [["", f"reaches {reference}'s score", f"after {unit}", f"{reference}: {unit}", "share"]]
    for metric, lines in panels.items():
        known = {line.label: line for line in lines if line.x}
        if reference not in known:
            continue
        goal, most = known[reference].mean[-1], known[reference].x[-1]
        for line in (line for label, line in known.items() if label != reference):
            reached = _reached(line, float(goal))
            after = [f"{reached:,.0f}", f"{most:,.0f}", f"{reached / most:.2f}"] if reached else ["never", "", ""]
            rows.append([line.label, f"{metric}: {goal:.1f}", *after])
    return "\n".join(grid(rows)) + "\n" if len(rows) > 1 else ""


def _reached(line: Line, goal: float) -> float | None:
    """Return the amount at which a line's mean first reaches ``goal`` (not below the smallest amount); None if never."""
    first = next((place for place, mean in enumerate(line.mean) if mean >= goal), None)
    if not first:
        return None if first is None else float(line.x[0])
    (low, high), (below, above) = np.log(line.x[first - 1 : first + 1]), line.mean[first - 1 : first + 1]
    return float(np.exp(low + (high - low) * (goal - below) / (above - below)))


def draw_differences(stem: Path, title: str, caption: str, comparisons: "Sequence[Comparison]") -> Figure:
    """Draw each table line's difference from its baseline, in percentage points, as a dot with its confidence interval."""
    names = [one_line(one.name) for one in comparisons]
    labels = [textwrap.fill(name, NAME) for name in names]
    lines = sum(1 + label.count("\n") for label in labels)
    points = 100 * np.array([(one.difference, one.interval.low, one.interval.high) for one in comparisons])
    middle, low, high = points.T
    places = np.arange(len(names))[::-1]  # the first line on top
    with canvas(0.9 + 0.1 * len(names) + 0.17 * lines) as drawn:
        axes = drawn.subplots()
        # a title of the whole picture, because the axes next to the names are too narrow for it
        drawn.suptitle(textwrap.fill(title, 60), x=0.01, ha="left", fontsize=10, fontweight="bold")
        axes.axvline(0.0, color=BASELINE, linewidth=0.9, linestyle=(0, (1, 2)))
        style = STYLES[1]
        axes.hlines(places, low, high, color=style.colour, linewidth=style.width)
        axes.plot(middle, places, style.marker, color=style.colour, markersize=style.size, markeredgecolor="white")
        axes.set_yticks(places, labels)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel("points")
        rows: list[tuple[Any, ...]] = [("line", "baseline", "difference", "low", "high")]
        for name, one, point in zip(names, comparisons, points, strict=True):
            rows.append((harmless(name), harmless(one_line(one.baseline)), *(f"{value:.6g}" for value in point)))
        return _with_csv(drawn, stem, title, caption, rows)


def draw_entropy(stem: Path, title: str, caption: str, panels: Mapping[str, Sequence[Line]], even: float) -> Figure:
    """Draw attention entropy by layer, with one panel per model.

    All panels have the same axes, and the same lines, such as before and after training.

    ``even``: entropy of uniform attention over all tokens of a text, in nats.
    """
    labels = _labels(panels)
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    with canvas(2.05 * down + 0.75, WIDTH) as drawn:
        grid = drawn.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        known: dict[str, Any] = {}
        for place, (axes, (name, lines)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
            axes.set_title(name)
            known = _lines(axes, lines, labels) | known
            known[EVEN] = axes.axhline(even, color=BASELINE, linewidth=0.9, linestyle=(0, (1, 2)))
            if place + across >= len(panels):  # the last panel of its column
                axes.set_xlabel("layer")
                axes.tick_params(labelbottom=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        every = [line for lines in panels.values() for line in lines]
        layers = sorted({int(layer) for line in every for layer in line.x})
        grid[0, 0].set_xticks(layers if len(layers) <= 8 else layers[1::2])
        _room(grid[0, 0], every, near=np.inf, above=even)
        drawn.supylabel("entropy of CLS attention (nats)", fontsize=9)
        legend(drawn, [known[label] for label in (*labels, EVEN)], [*labels, EVEN])
        return replace(_finish(drawn, stem, title, caption, panels), table=_numbers(panels, "layer"))


def draw_losses(stem: Path, title: str, caption: str, lines: Sequence[Line], x_label: str) -> Figure:
    """Draw training losses on a log scale.

    Each configuration has one line, with a band of one standard deviation over its runs.
    """
    with canvas(3.4 + 0.14 * len(lines)) as drawn:
        axes = _stack(drawn, title, {"training loss (nats, log scale)": lines}, x_label)
        axes.set_yscale("log")
        _log_losses(axes, lines)
        _from_the_start(axes, whole=x_label != "epoch")
        return _finish(drawn, stem, title, caption, {"": lines})


def draw_training(stem: Path, title: str, caption: str, panels: Mapping[str, Sequence[Line]]) -> Figure:
    """Draw the curves of several training runs by optimisation step, with one panel per logged value (loss, validation).

    A training run has the same style in all panels.
    """
    labels = _labels(panels)
    with canvas(2.2 * len(panels) + 0.6 + 0.14 * len(labels)) as drawn:
        _from_the_start(_stack(drawn, title, panels, "optimisation step"))
        return _finish(drawn, stem, title, caption, panels)


def _stack(
    drawn: "Canvas",
    title: str,
    panels: Mapping[str, Sequence[Line]],
    x_label: str,
    near: float = 0.2,
    log: bool = False,
) -> "Axes":
    """Draw panels one above the other, with one x axis and one legend, and return the lowest panel.

    ``near``: see ``_room``. ``log``: whether the x axis is logarithmic.
    """
    labels, known = _labels(panels), dict[str, Any]()
    grid: Any = drawn.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (y_label, lines) in zip(grid, panels.items(), strict=True):
        axes.set_xscale("log" if log else "linear")
        known = _lines(axes, lines, labels) | known
        axes.set_ylabel(y_label)
        _room(axes, lines, near)
    grid[0].set_title(title)
    grid[-1].set_xlabel(x_label)
    legend(drawn, [known[label] for label in labels], labels)
    return grid[-1]


def _labels(panels: Mapping[str, Sequence[Line]]) -> list[str]:
    """Return the labels of all panels. Lines with the same label have the same style in all panels."""
    return list(dict.fromkeys(line.label for lines in panels.values() for line in lines))


def _lines(axes: "Axes", lines: Sequence[Line], labels: Sequence[str]) -> dict[str, Any]:
    """Draw the lines, and return label -> artist for the legend. ``labels``: labels of all panels."""
    if len(labels) > len(STYLES):
        raise UserError(f"{len(labels)} lines, but only {len(STYLES)} can be told apart; name fewer of them")
    return {line.label: _line(axes, line, labels.index(line.label), len(labels)) for line in lines}


def _line(axes: "Axes", line: Line, number: int, of: int) -> Any:
    style, mean, deviation = STYLES[number], line.mean, line.deviation
    look: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "linewidth": style.width}
    if not line.x:  # a constant
        if deviation[0]:
            axes.axhspan(mean[0] - deviation[0], mean[0] + deviation[0], color=style.colour, alpha=0.12, linewidth=0)
        return axes.axhline(mean[0], **look)
    x = np.array(line.x)
    marks: dict[str, Any] = {
        "marker": style.marker,
        "markersize": style.size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }
    if len(x) <= FEW:
        if deviation.any():
            bars: dict[str, Any] = {"color": style.colour, "elinewidth": 1.0, "capsize": 2.5}
            axes.errorbar(x, mean, deviation, fmt="none", **bars)
        (drawn,) = axes.plot(x, mean, **look, **marks)
        return drawn
    smooth, spread = smoothed(mean), smoothed(deviation)
    if spread.any():
        axes.fill_between(x, smooth - spread, smooth + spread, color=style.colour, alpha=0.15, linewidth=0)
    every = len(x) / MARKS  # offset, so that markers of different lines do not coincide
    at = np.unique((every * (np.arange(MARKS) + (number + 0.5) / max(of, number + 1))).astype(int).clip(0, len(x) - 1))
    (drawn,) = axes.plot(x, smooth, **look, **marks, markevery=at.tolist())
    return drawn


def _room(axes: "Axes", lines: Sequence[Line], near: float = 0.2, above: float = -np.inf) -> None:
    """Set the limits of the y axis: all means, all error bars and the value ``above`` lie within them.

    The axis begins at 0 if the lowest value is below ``near`` times the highest value.
    """
    low = min(float((line.mean - line.deviation).min()) for line in lines)
    high = max(above, *(float((line.mean + line.deviation).max()) for line in lines))
    if all((line.mean >= 0).all() for line in lines) and low < near * high:
        low = 0.0
    axes.set_ylim(with_room(low, high))


def _from_the_start(axes: "Axes", whole: bool = True) -> None:
    """Start the x axis at 0. With ``whole``, its ticks are integers, as for steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))


def _log_losses(axes: "Axes", lines: Sequence[Line]) -> None:
    """Set the limits of a log axis by the means and their error bars, with at least three ticks at round numbers."""
    means = np.concatenate([smoothed(line.mean) for line in lines])
    bars = np.concatenate([smoothed(line.deviation) for line in lines])
    if not (means > 0).any():  # all zeros
        axes.set_yscale("linear")
        return
    means, bars = means[means > 0], bars[means > 0]
    low = float(np.maximum(means - bars, means / 3).min()) / 1.1  # a bar down to zero would not end on a log scale
    high = float((means + bars).max()) * 1.1
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.log10(high))
    choices = [np.outer(powers, firsts).ravel() for firsts in ((1,), (1, 2, 5), range(1, 10), np.arange(10, 100) / 10)]
    inside = [choice[(choice >= low) & (choice <= high)] for choice in choices]
    ticks = next((choice for choice in inside if len(choice) >= 3), np.array([low * 1.1, high / 1.1]))
    axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(low, high)


def _log_axis(axes: "Axes", places: Sequence[float]) -> None:
    """Set the ticks: at the measured values if there are at most six, otherwise at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    if not places:  # all lines are constants
        axes.set_xticks([])
        return
    axes.set_xlim(min(places) / 1.25, max(places) * 1.25)
    if len(set(places)) <= 6:
        separate_ticks(axes, places)
        return
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: compact(value))


def _finish(drawn: Any, stem: Path, title: str, caption: str, panels: Mapping[str, Sequence[Line]]) -> Figure:
    rows: list[tuple[Any, ...]] = [("panel", "line", "x", "mean", "deviation", "runs")]
    for panel, lines in panels.items():
        for line in lines:
            places = [f"{x:.6g}" for x in line.x] or [""]
            values = zip(places, line.mean, line.deviation, map(len, line.values), strict=True)
            named = (harmless(one_line(panel)), harmless(line.label))
            rows += [(*named, x, f"{mean:.6g}", f"{sd:.6g}", runs) for x, mean, sd, runs in values]
    return _with_csv(drawn, stem, title, caption, rows)


def _with_csv(drawn: Any, stem: Path, title: str, caption: str, rows: Sequence[tuple[Any, ...]]) -> Figure:
    """Write the figure, and its numbers as CSV."""
    paths = {**save(drawn, stem, title), "csv": stem.with_name(f"{stem.name}.csv")}
    write_text(paths["csv"], csv_of(rows))
    return Figure(stem.name, title, caption, paths)


def _numbers(panels: Mapping[str, Sequence[Line]], heading: str) -> str:
    """Return the lines of all panels as a Markdown table, with one column per x."""
    places = sorted({x for lines in panels.values() for line in lines for x in line.x})
    rows = [["", *(f"{heading} {place:g}" for place in places)]]
    for panel, lines in panels.items():
        for line in lines:
            values = dict(zip(line.x, zip(line.mean, line.deviation, strict=True), strict=True))
            several = max(map(len, line.values)) > 1  # runs
            cells = [f"{mean:.2f}" + (f" ± {sd:.2f}" if several else "") for mean, sd in values.values()]
            known = dict(zip(values, cells, strict=True))
            rows.append([f"{panel}, {line.label}", *(known.get(place, "–") for place in places)])
    return "\n".join(grid(rows)) + "\n"
