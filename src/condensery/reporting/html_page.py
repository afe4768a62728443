"""Write the page of a run or a sweep: one HTML file with tables, figures, curves, configs and commands. It works offline.

Each number links to its line in the section "Where the numbers come from", which names its seed, artifact, run and curves. A
click on a column heading sorts the table. Without scripts, the page has the same content, in the order of the recipe.

``Page`` holds the data of the page, from any source. ``html`` builds the page. All text is escaped.
"""

import base64
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from textwrap import dedent
from typing import Any

from markupsafe import Markup

from condensery.reporting import suspects
from condensery.reporting.curves import Curve
from condensery.reporting.drawing import Figure
from condensery.reporting.examples import Examples
from condensery.reporting.html import TEMPLATES, macros
from condensery.reporting.panels import panel
from condensery.reporting.plain import one_line
from condensery.reporting.results import Row
from condensery.reporting.table import MARK, MISSING, Table
from condensery.reporting.table_formats import ABOUT_COMPARED, COMPARED, SOURCE, laid_out, one_lined
from condensery.system.progress import clock

STYLE, SCRIPT = TEMPLATES / "page.css", TEMPLATES / "page.js"
SHOWN = 12  # maximum number of points per line in the table of a figure's numbers
Cell = str | tuple[str, str]  # a string; or (name of an HTML element, its text); or ("#id", text of the link)


@dataclass(frozen=True)
class ArtifactRow:
    """One stage of a run and its artifact.

    ``warnings`` holds the problems that the stage found in its input. If there is no artifact, ``failed`` gives the reason,
    and ``cause`` names the stage that failed: this stage or one of its inputs. ``seconds`` and the other fields are then
    empty.
    """

    stage: str
    kind: str
    id: str
    reads: Sequence[str] = ()
    seconds: float | None = None
    created: str = ""
    version: int | None = None
    cause: str = ""
    failed: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class JobSection:
    """One run: its label among the jobs of its sweep, its command, composed config, stages and training curves."""

    label: str
    command: str
    config: str
    artifacts: Sequence[ArtifactRow] = ()
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The data that the page of a run or a sweep shows.

    Attributes:
        name: title of the page.
        about: description of the research question, as paragraphs. An indented paragraph is a command.
        command: the command as the user typed it; empty if it is not known.
        tables, figures: tables and figures of the results.
        jobs: one job for a run, several for a sweep.
        rows: the measured rows from which the numbers of the tables were computed.
        failed: (name, reason) of jobs that produced no run.
        machine: hardware and library versions, by name.
        examples: example questions with the results of each row; None if the table does not compare retrievers.
        suspects: stage -> its suspected false negatives, in the format of ``reporting.suspects.shown``.
        words: the result in words, if there is no table with a conclusion.
    """

    name: str
    about: Sequence[str] = ()
    command: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    jobs: Sequence[JobSection] = ()
    rows: Sequence[Row] = ()
    failed: Sequence[tuple[str, str]] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    examples: Examples | None = None
    suspects: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""


def html(page: Page) -> str:
    """Return the complete HTML document of a page."""
    page_macros = macros("page.html")
    order = {name: at for at, name in enumerate(dict.fromkeys(row.name for row in page.rows))}
    rows = sorted(page.rows, key=lambda row: order[row.name])  # puts the seeds of a system together
    places = {row.name: f"from-{at}" for at, row in reversed(list(enumerate(rows)))}  # the first row of each name
    sections = {
        "Failed": page_macros.faults(_failed(page)),
        "Warnings": page_macros.faults(_warnings(page)),
        "Results": Markup().join(results_table(table, places) for table in page.tables)
        + page_macros.conclusion(one_line(page.words)),
        "Examples": page_macros.examples(page.examples) if page.examples else "",
        "Suspected false negatives": page_macros.suspects(_suspects(page)) if page.suspects else "",
        "Figures": Markup().join(page_macros.figure(one, _data(one), *_numbers(one)) for one in page.figures),
        "Training curves": page_macros.curves(_curves(page.jobs)),
        "Run it again": page_macros.commands(page.command, _each_command(page)),
        "Where the numbers come from": page_macros.sources(_sources(rows, page.jobs)) if rows else "",
        "Stages": page_macros.stages(_stages(page.jobs)) if any(job.artifacts for job in page.jobs) else "",
        "Configuration": page_macros.configs(page.jobs),
        "Machine": page_macros.machine(page.machine) if page.machine else "",
    }
    shown = [
        {"title": title, "place": title.lower().replace(" ", "-"), "content": content}
        for title, content in sections.items()
        if content
    ]
    what = f"A study of {len(page.jobs)} runs" if len(page.jobs) > 1 else "A run"
    about = [(dedent(text), True) if text.startswith(" ") else (text, False) for text in page.about]
    style, script = (file.read_text(encoding="utf-8") for file in (STYLE, SCRIPT))
    digest = base64.b64encode(sha256(script.encode()).digest()).decode("ascii")  # no other script may run
    return str(page_macros.document(page, Markup(style), Markup(script), digest, what, about, shown))


def results_table(table: Table, places: Mapping[str, str] | None = None) -> Markup:
    """Return a table as HTML, with its conclusion, its notes, and the differences from the baseline with p-values.

    The best numbers are in bold, and significant differences are marked. A table with blocks has a heading for each block and
    a column of sources, and is never transposed.

    Args:
        table: the table.
        places: system -> HTML id of the element with the origin of its numbers. Measured numbers link to this id.
    """
    systems = [(places or {}).get(name, "") for name in table.names]
    cells = [
        [replace(cell, place="" if cell.published or cell.text == MISSING else place) for cell in line]
        for line, place in zip(table.cells, systems, strict=True)
    ]
    table = one_lined(replace(table, cells=cells, turned=table.turned and not table.blocks))
    header, _, bodies, _ = laid_out(table)
    differences = [[one.name, one.column, *one.shown()] for one in table.comparisons]
    compared = (["", *COMPARED], differences, ABOUT_COMPARED)
    headings = [cell.text for cell in header]
    return Markup(macros("page.html").results(table, headings, bodies, compared, MARK, SOURCE))


def _data(figure: Figure) -> str:
    return base64.b64encode(figure.paths["svg"].read_bytes()).decode("ascii")


def _numbers(figure: Figure) -> tuple[list[str], list[list[str]], str]:
    """Return the numbers of a figure as a table.

    A long line is reduced to some of its points. A CSV without a column ``panel`` is returned unchanged.

    Returns:
        Header, lines, and a sentence on the points that were left out; all empty if the figure has no CSV.
    """
    if "csv" not in figure.paths:
        return [], [], ""
    with open(figure.paths["csv"], encoding="utf-8", newline="") as stream:
        points = list(csv.DictReader(stream))
    if "panel" not in points[0]:
        return ["", *list(points[0])[1:]], [list(point.values()) for point in points], ""
    by_line: dict[str, list[dict[str, str]]] = {}
    for point in points:
        by_line.setdefault(", ".join(filter(None, (point["panel"], point["line"]))), []).append(point)
    lines = []
    for name, given in by_line.items():
        for point in (given[at] for at in _evenly(len(given))):
            mean, deviation = float(point["mean"]), float(point["deviation"])
            lines.append([name, point["x"], f"{mean:.4g}", f"{deviation:.2g}", point["runs"]])
    left_out = f"{len(lines):,} of {len(points):,} points; all are in {figure.name}.csv."
    return ["", "x", "mean", "standard deviation", "runs"], lines, left_out if len(lines) < len(points) else ""


def _evenly(number: int) -> list[int]:
    """Return at most ``SHOWN`` evenly spaced indices below ``number``, including the first and the last."""
    return sorted({round(at * (number - 1) / max(1, min(SHOWN, number) - 1)) for at in range(min(SHOWN, number))})


def _curves(jobs: Sequence[JobSection]) -> list[tuple[str, list[Markup]]]:
    """Return (label, panels) of each job with training curves. Curves that jobs share are shown only at the first job."""
    shown: set[str] = set()
    by_job = []
    for job in jobs:
        panels = []
        for stage, curves in job.curves.items():
            place = _place_of_curves(job, stage)
            if not place or place not in shown:
                panels.append(panel(stage, curves, place))
                shown.add(place)
        if panels:
            by_job.append((job.label, panels))
    return by_job


def _place_of_curves(job: JobSection, stage: str) -> str:
    """Return the HTML id of a stage's training curves. An artifact has the same id in all jobs."""
    return next((f"curves-{row.kind}-{row.id}" for row in job.artifacts if row.stage == stage), "")


def _suspects(page: Page) -> list[tuple[str, str, list[list[Cell]]]]:
    """Return for each stage that found suspects: its name, an explanation, and the lines of its table."""
    return [(stage, suspects.about(found), suspects.lines(found)) for stage, found in page.suspects.items()]


def _failed(page: Page) -> list[tuple[str, str]]:
    """Return (failed stages and jobs, reason) for each different reason.

    Each failed stage is listed with the number of later stages that could not run because of it.
    """
    lines: dict[str, list[str]] = {}
    for job in page.jobs:
        for row in (row for row in job.artifacts if row.failed and row.cause == row.stage):
            needing = sum(other.cause == row.stage for other in job.artifacts) - 1
            without = f" ({needing} {'stage' if needing == 1 else 'stages'} after it not computed)" if needing else ""
            lines.setdefault(row.failed, []).append(" · ".join(filter(None, (job.label, row.stage))) + without)
    for what, why in page.failed:
        lines.setdefault(why, []).append(what)
    return [(", ".join(those), why) for why, those in lines.items()]


def _warnings(page: Page) -> list[tuple[str, str]]:
    """Return (stage, warning about its input) for each different warning. A sweep's warning ends with the jobs' names."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for job in page.jobs:
        for row in job.artifacts:
            for text in row.warnings:
                lines.setdefault((row.stage, text), {})[job.label] = None
    several = len(page.jobs) > 1
    return [
        (stage, text + (f" ({', '.join(filter(None, labels))})" if several else ""))
        for (stage, text), labels in lines.items()
    ]


def _each_command(page: Page) -> str:
    """Return the command of each run; empty for a single run if the page has its command."""
    if len(page.jobs) < 2 and page.command:
        return ""
    return "\n".join(line for job in page.jobs if job.command for line in (f"# {job.label or 'the run'}", job.command))


def _sources(rows: Sequence[Row], jobs: Sequence[JobSection]) -> list[list[Cell]]:
    shown = {_place_of_curves(job, stage) for job in jobs for stage in job.curves}
    made: dict[str, tuple[int, ArtifactRow]] = {}  # artifact -> the first job that has it, and its row there
    for at, job in enumerate(jobs):
        for one in job.artifacts:
            made.setdefault(f"{one.kind}/{one.id}", (at, one))
    lines: list[list[Cell]] = []
    for row in rows:
        run: Cell = ""
        curves: Cell = ""
        if row.artifact in made:
            at, measured = made[row.artifact]
            job = jobs[at]
            run = (f"#config-{at}", job.label or "this one") if job.config else job.label
            curves_of = {stage: _place_of_curves(job, stage) for stage in _ancestors(measured, job.artifacts)}
            curves = next(((f"#{place}", stage) for stage, place in curves_of.items() if place in shown), "")
        seed = MISSING if row.seed is None else str(row.seed)
        place = f"{row.collection or MISSING}, {row.split}"
        lines.append([row.name, seed, place, ("code", row.artifact), run, curves, "failed" if row.failed else ""])
    return lines


def _ancestors(artifact: ArtifactRow, artifacts: Sequence[ArtifactRow]) -> list[str]:
    """Return the stages on which an artifact depends, the nearest first."""
    reads = {one.stage: one.reads for one in artifacts}
    names = list(dict.fromkeys(artifact.reads))
    for name in names:  # the list grows during the loop
        names += [further for further in reads.get(name, ()) if further not in names]
    return names


def _stages(jobs: Sequence[JobSection]) -> list[list[Cell]]:
    """Return one line per stage and artifact. An artifact that several runs share is listed once."""
    lines: dict[tuple[str, str], list[Cell]] = {}
    for row in (row for job in jobs for row in job.artifacts):
        took = MISSING if row.seconds is None else clock(row.seconds)
        if row.failed:
            took = "failed" if row.cause == row.stage else "not computed"
        version = "" if row.version is None else str(row.version)
        place = ("code", f"{row.kind}/{row.id}")
        cells: list[Cell] = [row.stage, took, place, version, ", ".join(row.reads), ("time", row.created)]
        lines.setdefault((row.stage, row.id), cells)
    return list(lines.values())
