"""The style of all figures of the project: readable without colour, and the same bytes for the same data.

A figure is about 12 cm wide, so that its text is still readable on a phone, which shows it 360 pixels wide. Lines differ in
dashes, in markers, and in colours that colour-blind readers can distinguish.
"""

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from condensery.system.files import atomic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 4.8  # inches
DPI = 200  # of the PNG
WRAP = 44  # maximum number of characters per line of a legend


class Style(NamedTuple):
    """The style of one line."""

    colour: str
    dashes: Any
    marker: str
    width: float = 1.5
    size: float = 5.0  # of the marker


# The Okabe-Ito palette, with its light colours darkened for a white background.
STYLES = (
    Style("#000000", "-", "o", 1.6),
    Style("#0072B2", (0, (5, 1.5)), "s"),
    Style("#D55E00", (0, (1, 1.2)), "^", 1.8, 6.0),
    Style("#009E73", (0, (6, 1.5, 1, 1.5)), "D"),
    Style("#7A3E8E", (0, (6, 1.5, 1, 1.2, 1, 1.2)), "v", size=6.0),
    Style("#A6761D", (0, (3, 1)), "P", size=6.5),
    Style("#3B8EC2", (0, (10, 2.5)), "X", size=6.5),
    Style("#666666", (0, (1, 3)), "*", 1.8, 8.5),
)

_SETTINGS: dict[str, Any] = {  # changes to matplotlib's defaults; the user's matplotlibrc is ignored
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # the name of a row may contain $
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "svg.fonttype": "path",  # text as outlines, because the font may not be installed
    "svg.hashsalt": "condensery",  # fixes the ids in an SVG, which are random otherwise
}


@dataclass(frozen=True)
class Figure:
    """A figure that was drawn and written to files.

    Attributes:
        name: name of the files, without ending.
        title: subject of the figure, in a few words.
        caption: full sentences of plain text on the quantities of the axes, the runs of each mean, and missing data.
        paths: format -> file: ``png``, ``svg``, and if available ``csv`` with the drawn numbers.
        table: the drawn numbers as a Markdown table, if it is small enough to be read; otherwise empty.
    """

    name: str
    title: str
    caption: str
    paths: dict[str, Path]
    table: str = ""


@contextmanager
def canvas(height: float, width: float = WIDTH) -> Iterator["Canvas"]:
    """Open an empty figure of ``width`` x ``height`` inches in the style of the project. Save it within the ``with`` block.

    The figure does not use pyplot, so there is no global state, no window system, and nothing to close.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with style.context([_SETTINGS], after_reset=True), warnings.catch_warnings(record=True) as told:
        drawn = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(drawn)
        yield drawn
    if any("missing from font" in str(one.message) for one in told):  # matplotlib warns once for each letter
        print("figures: boxes stand for the letters that the font DejaVu Sans lacks", flush=True)


def save(drawn: "Canvas", stem: Path, title: str) -> dict[str, Path]:
    """Write ``stem``.png and ``stem``.svg without date and version, and return their paths by format."""
    about = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None, "Title": title}}
    paths = {}
    for kind, metadata in about.items():
        paths[kind] = stem.with_name(f"{stem.name}.{kind}")
        with atomic(paths[kind]) as temporary:
            drawn.savefig(temporary, format=kind, dpi=DPI, metadata=metadata)
        drawn.set_layout_engine("none")  # the second file reuses the layout, which saves a third of the time
    return paths


def legend(drawn: "Canvas", handles: Sequence["Artist"], labels: Sequence[str]) -> None:
    """Draw one legend for all panels, below them, in as many columns as fit without cutting a label."""
    if not handles:
        return
    wrapped = [textwrap.fill(label, WRAP) for label in labels]
    room = drawn.bbox.width * 0.97
    for columns in range(min(len(labels), 4), 0, -1):
        below = drawn.legend(
            handles, wrapped, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4, numpoints=1
        )
        if columns == 1 or below.get_window_extent().width <= room:
            return
        below.remove()


def with_room(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis with some room below and above the values; an axis that begins at 0 has none below."""
    room = 0.06 * (high - low) or 1.0
    return (low if low == 0 else low - room), high + room


def separate_ticks(axes: "Axes", places: Sequence[float]) -> None:
    """Put the ticks of a log axis at the measured values. Of two values that are too close to read, the larger one stays."""
    low, high = min(places), max(places)
    kept: list[float] = []
    for place in sorted(set(places), reverse=True):
        if not kept or high == low or math.log(kept[-1] / place) > 0.14 * math.log(high / low):
            kept.append(place)
    axes.set_xticks(kept, [compact(place) for place in kept])
    axes.minorticks_off()


def compact(number: float) -> str:
    """Format a count as the label of a tick: 8,623; 400 k; 1.2 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:,.0f}"
