"""The figures of the papers: nothing is cut or covered, lines differ without colour, equal numbers give equal bytes."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from condensery.errors import UserError
from condensery.evaluation.significance import Interval
from condensery.reporting import figures
from condensery.reporting.drawing import STYLES, Figure, canvas, compact, save
from condensery.reporting.figures import (
    Line,
    draw_differences,
    draw_entropy,
    draw_losses,
    draw_scores,
    draw_training,
    equal_quality,
)
from condensery.reporting.table import Comparison

FEW, MANY = [1000.0, 4000.0, 8000.0, 8623.0], [float(step) for step in range(1, 200)]
LONG = "coCondenser, with hard negatives of several retrievers that were mined again half-way"


def lines(x: list[float], labels: list[str]) -> list[Line]:
    """A falling line a label, of two runs."""
    found = []
    for number, label in enumerate(labels):
        values = [5 / (1 + math.log(place / x[0] + 1)) + number for place in x]
        found.append(Line(label, x, [(value, value + 0.2) for value in values]))
    return found


DRAW: dict[str, Callable[[Path], Figure]] = {
    "scores": lambda stem: draw_scores(
        stem,
        "Size",
        "A caption.",
        {"MRR@10 (%)": [Line("BM25", (), [[3.0, 3.5]]), *lines(FEW, ["a", "b", "c", LONG])]},
        "queries",
    ),
    "several scores": lambda stem: draw_scores(
        stem,
        "Size",
        "A caption.",
        {"Hit@20 (%)": lines(FEW, ["a", LONG]), "Hit@100 (%)": [Line("BM25", (), [[3.0]]), *lines(FEW[1:], [LONG])]},
        "queries",
    ),
    "entropy": lambda stem: draw_entropy(
        stem,
        "Entropy",
        "A caption.",
        {model: lines([1, 2, 3, 4], ["before", "after"]) for model in ("random init", "MLM", "Condenser")},
        4.2,
    ),
    "losses": lambda stem: draw_losses(stem, "Loss", "A caption.", lines(MANY, [*"abcdefg", LONG]), "step"),
    "training": lambda stem: draw_training(
        stem, "Training", "A caption.", {"loss": lines(MANY, [*"abc", LONG]), "MRR@10 (%)": lines(MANY[::40], [*"bc"])}
    ),
}


@pytest.mark.parametrize("kind", DRAW)
def test_nothing_is_cut_and_the_legend_covers_no_data(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def looked_at(drawn: Any, stem: Path, title: str) -> dict[str, Path]:
        paths = save(drawn, stem, title)
        page, (below,) = drawn.bbox, drawn.legends
        legend = below.get_window_extent()
        texts = [*below.get_texts(), *drawn.texts]
        for axes in (one for one in drawn.axes if one.get_visible()):
            assert axes.get_window_extent().y0 > legend.y1, "the legend is below the panels"
            texts += [axes.title, axes.xaxis.label, axes.yaxis.label, axes._left_title]
            for axis in (axes.xaxis, axes.yaxis):
                ticks = [label for label in axis.get_ticklabels() if label.get_text() and label.get_visible()]
                low, high = sorted(axis.get_view_interval())
                places = dict(zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=False))
                boxes = [one.get_window_extent() for one in ticks if low <= places[one] <= high]
                assert not any(a.overlaps(b) for a in boxes for b in boxes if a is not b), "two ticks overlap"
                texts += [one for one in ticks if low <= places[one] <= high]
            for line in axes.lines:
                assert np.isfinite(line.get_ydata()).all()
        for text in (one for one in texts if one.get_text()):
            box = text.get_window_extent()
            assert box.x0 >= page.x0 - 1, text.get_text()
            assert box.x1 <= page.x1 + 1, text.get_text()
            assert box.y0 >= page.y0 - 1, text.get_text()
            assert box.y1 <= page.y1 + 1, text.get_text()
            seen.append(text.get_text())
        return paths

    monkeypatch.setattr(figures, "save", looked_at)
    found = DRAW[kind](tmp_path / kind)
    assert found.name == kind
    assert set(found.paths) == {"png", "svg", "csv"}
    assert len(seen) > 8
    assert kind == "entropy" or any(text.replace("\n", " ") == LONG for text in seen), "a long label is wrapped, whole"


@pytest.mark.parametrize("kind", DRAW)
def test_the_same_numbers_give_the_same_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    first = DRAW[kind](tmp_path / "a")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 20)  # a matplotlibrc of the user's own
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    second = DRAW[kind](tmp_path / "b")
    for name, path in first.paths.items():
        assert path.read_bytes() == second.paths[name].read_bytes(), name
    svg = first.paths["svg"].read_text()
    assert "<text" not in svg, "text is drawn as outlines"
    assert "date" not in svg


def test_lines_of_the_same_numbers_differ_in_grey(tmp_path: Path) -> None:
    pictures = []
    for number, style in enumerate(STYLES):
        with canvas(2.0) as drawn:
            axes = drawn.subplots()
            figures._lines(axes, [Line("x", FEW, [[1], [2], [3], [2]])], [*map(str, range(number)), "x"])
            grey = imread(save(drawn, tmp_path / style.colour, "")["png"])[:, :, :3].mean(axis=2)
        pictures.append(grey < 0.8)
    for i, one in enumerate(pictures):
        for other in pictures[:i]:
            assert (one ^ other).sum() > 0.1 * one.sum(), "they are drawn alike"
    assert (
        len({(str(style.dashes), style.marker) for style in STYLES}) == len({s.marker for s in STYLES}) == len(STYLES)
    )


def test_the_numbers_behind_a_figure_are_beside_it(tmp_path: Path) -> None:
    found = DRAW["scores"](tmp_path / "size")
    rows = list(csv.DictReader(found.paths["csv"].open()))
    assert len(rows) == 1 + 4 * 4
    assert rows[0] == {"panel": "", "line": "BM25", "x": "", "mean": "3.25", "deviation": "0.353553", "runs": "2"}
    assert rows[1]["x"] == "1000"
    table = DRAW["entropy"](tmp_path / "entropy").table.splitlines()
    assert table[0].split("|")[2].strip() == "layer 1"
    assert table[2].startswith("| random init, before")
    assert "± 0.14" in table[2]
    assert len(table) == 2 + 3 * 2


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "＝1+1", "-2+3", "-$\\frac$ of $a$"])
def test_no_label_is_a_formula_in_the_numbers_behind_a_figure(label: str, tmp_path: Path) -> None:
    line = Line(f"{label}\n\x1b[31m", [500], [[3.0]])
    found = [draw_scores(tmp_path / "x", "x", "", {"MRR@10 (%)": [line]}, "queries")]
    found.append(draw_training(tmp_path / "y", "y", "", {label: [replace(line, x=[1, 2], values=[[3.0], [2.0]])]}))
    compared = Comparison(label, "MRR@10", 0.1, 0.2, Interval(0.0, 0.2, 0.05), label)
    found.append(draw_differences(tmp_path / "z", "z", "", [compared]))
    for one in found:
        for row in csv.reader(one.paths["csv"].open(newline="")):
            assert all(cell[:1] not in ("=", "+", "-", "@", "＝", "\t") for cell in row)
            assert not {"\n", "\x1b"} & {*"".join(row)}


def test_one_run_has_no_bars_and_one_amount_is_a_point(tmp_path: Path) -> None:
    found = draw_scores(tmp_path / "x", "x", "", {"MRR@10 (%)": [Line("a", [500], [[3.0]])]}, "queries")
    assert [row["deviation"] for row in csv.DictReader(found.paths["csv"].open())] == ["0"]
    only_levels = draw_scores(tmp_path / "y", "y", "", {"MRR@10 (%)": [Line("a", (), [[3.0]])]}, "queries")
    assert only_levels.paths["png"].stat().st_size > 1000
    flat = draw_losses(tmp_path / "z", "z", "", [Line("a", [1, 2], [[0.0], [0.0]])], "step")
    assert flat.paths["svg"].stat().st_size > 1000


def test_more_lines_than_can_be_told_apart_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="9 lines, but only 8 can be told apart"):
        draw_losses(tmp_path / "x", "x", "", lines(FEW, list("abcdefghi")), "step")
    assert not list(tmp_path.iterdir())


def test_counts_are_written_short() -> None:
    assert [compact(n) for n in (500, 8623, 400_000, 1_250_000, 2e9)] == ["500", "8,623", "400 k", "1.25 M", "2 G"]


def test_equal_quality_is_read_between_two_points_on_the_log_axis() -> None:
    slow = Line("slow", [100, 400], [[20.0], [28.0, 32.0]])
    fast = Line("fast", [50, 200, 800], [[10.0], [20.0], [40.0]])  # 30 half-way between 200 and 800: at 400
    quick, never = Line("quick", [10, 20], [[31.0], [50.0]]), Line("never", [10, 800], [[1.0], [29.9]])
    table = equal_quality({"MRR@10 (%)": [slow, fast, quick, never, Line("BM25", (), [[99.0]])]}, "slow", "steps")
    cells = [[one.strip() for one in line.strip("|").split("|")] for line in table.splitlines()]
    assert cells[0] == ["", "reaches slow's score", "after steps", "slow: steps", "share"]
    assert cells[2:] == [
        ["fast", "MRR@10 (%): 30.0", "400", "400", "1.00"],
        ["quick", "MRR@10 (%): 30.0", "10", "400", "0.03"],
        ["never", "MRR@10 (%): 30.0", "never", "", ""],
    ]
    assert equal_quality({"MRR@10 (%)": [fast]}, "slow", "steps") == ""


def test_letters_without_a_glyph_are_one_line_in_place_of_a_warning_for_each(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    with canvas(1) as drawn:
        drawn.suptitle("中文 हिन्दी é")
        save(drawn, tmp_path / "x", "x")
    assert not recwarn
    assert capsys.readouterr().out == "figures: boxes stand for the letters that the font DejaVu Sans lacks\n"
