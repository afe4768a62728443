"""The table of a run: systems against metrics, in percent, with the best marked and luck told from progress.

Rows of one name that differ in their seed become one line: mean and standard deviation over the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import PERMUTATIONS, Test, compare, holm
from condensery.files import atomic
from condensery.reporting.results import Row

MISSING = "–"
AVERAGE = "average"
WIDE = 10  # columns; a table of more is turned
IN_BOLD = "In percent; the best of each {} in bold."
MARK = "†"
TESTS = {"randomisation": "paired randomisation test", "t": "paired t-test"}

Column = tuple[str, str, str]  # collection, split, metric


@dataclass(frozen=True)
class Significance:
    """How lines are compared with a baseline: its name, the test, and the level after Holm's correction."""

    baseline: str
    test: Test = "randomisation"
    permutations: int = PERMUTATIONS
    level: float = 0.01
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """A line against the baseline in one column; ``difference`` as a fraction, ``p`` after Holm's correction."""

    name: str
    column: Column
    difference: float
    p: float


@dataclass
class Cell:
    """One number of the table."""

    text: str = MISSING
    best: bool = False
    marked: bool = False

    @property
    def markdown(self) -> str:
        """The number with its marks, best in bold."""
        return (f"**{self.text}**" if self.best else self.text) + (MARK if self.marked else "")


@dataclass
class Table:
    """A table ready to be shown."""

    title: str
    header: list[str]
    names: list[str]
    cells: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    labels: dict[Column, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """The table, its notes and the differences from the baseline as Markdown."""
        lines = [f"## {self.title}", "", *_grid(["", *self.header], self._lines()), ""]
        lines += [line for note in self.notes for line in (note, "")]
        if self.comparisons:
            lines += _grid(["", "metric", "difference", "p"], [self._comparison(one) for one in self.comparisons])
        return "\n".join(lines).rstrip() + "\n"

    def turned(self) -> "Table":
        """The same numbers with a line for each column."""
        notes = [IN_BOLD.format("line"), *self.notes[1:]]
        cells = [list(column) for column in zip(*self.cells, strict=True)]
        return replace(self, header=self.names, names=self.header, cells=cells, notes=notes)

    def _lines(self) -> list[list[str]]:
        return [[name, *(cell.markdown for cell in cells)] for name, cells in zip(self.names, self.cells, strict=True)]

    def _comparison(self, one: Comparison) -> list[str]:
        return [one.name, self.labels[one.column], f"{100 * one.difference:+.1f}", f"{one.p:.4f}"]

    def write(self, path: Path) -> None:
        """Write the Markdown to ``path``."""
        with atomic(path) as temporary:
            temporary.write_text(self.markdown(), encoding="utf-8")

    def show(self, console: Console | None = None) -> None:
        """Print the table and its notes to a terminal."""
        shown = RichTable(title=self.title, title_justify="left")
        shown.add_column("")
        for label in self.header:
            shown.add_column(label, justify="right")
        for name, cells in zip(self.names, self.cells, strict=True):
            texts = [Text(cell.text + (MARK if cell.marked else ""), "bold" if cell.best else "") for cell in cells]
            shown.add_row(Text(name), *texts)
        console = console or Console()
        console.print(shown)
        for note in self.notes:
            console.print(Text(note))


def _grid(header: list[str], lines: list[list[str]]) -> list[str]:
    """A Markdown table, padded so that it also reads well as plain text; first column left, the others right."""
    lines = [[text.replace("|", "\\|") for text in line] for line in [header, *lines]]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    rows = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return ["| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]]


def build_table(
    rows: Sequence[Row], metrics: Sequence[str] | None = None, significance: Significance | None = None, title: str = ""
) -> Table:
    """Arrange rows, in the order in which their names first appear; over several collections there is an average.

    ``metrics`` chooses and orders the columns (default: all, as they appear). A row that failed is a line of dashes, or
    lacks among its seeds, and a note says why. Raises ``UserError`` when nothing was measured or the baseline is not
    among the rows.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    failed = reasons(rows)
    rows = [row for row in rows if not row.failed]
    if not rows:
        raise UserError("table: there is no result to show")
    rows = [*rows, *averages(rows)]
    groups: dict[tuple[str, str, str], list[Row]] = {}  # (name, collection, split) -> its seeds
    for row in rows:
        groups.setdefault((row.name, row.collection, row.split), []).append(row)
    places = list(dict.fromkeys((row.collection, row.split) for row in rows))
    chosen = list(metrics or dict.fromkeys(metric for row in rows for metric in row.metrics))
    columns: list[Column] = [(*place, metric) for place in places for metric in chosen]
    single = len(places) == 1
    labels = {column: column[2] if single else f"{column[0]} {column[1]} {column[2]}" for column in columns}
    where = f"{places[0][0]}, {places[0][1]}" if single else ""
    cells = [[Cell(_number(groups.get((name, *column[:2]), []), column[2])) for column in columns] for name in names]
    table = Table(
        title=" · ".join(part for part in (title, where) if part) or "Results",
        header=[labels[column] for column in columns],
        names=names,
        cells=cells,
        notes=[IN_BOLD.format("column"), *(f"{MISSING} {', '.join(those)}: {why}." for why, those in failed.items())],
        labels=labels,
    )
    _mark_best(cells)
    numbers = sorted({len(seeds) for seeds in groups.values() if len(seeds) > 1})
    if numbers:
        table.notes.append(f"± is the standard deviation over {' or '.join(map(str, numbers))} seeds.")
    if significance:
        _mark_significant(table, groups, columns, significance)
    return table.turned() if len(columns) > WIDE else table


def reasons(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Why rows failed -> their names, with the seed where another seed was measured."""
    measured = {row.name for row in rows if not row.failed}
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.failed:
            name = f"{row.name}, seed {row.seed}" if row.name in measured else row.name
            those = found.setdefault(row.failed.rstrip("."), [])
            those += [] if name in those else [name]
    return found


def averages(rows: Sequence[Row]) -> list[Row]:
    """For each system and seed the mean of its metrics over the collections, where it has the same split of them all.

    Collections called ``whole/part`` count together as one, as BEIR has it with CQADupStack.
    """
    collections = {row.collection for row in rows}
    measured: dict[tuple[str, str, int | None], dict[str, Row]] = {}
    for row in rows:
        measured.setdefault((row.name, row.split, row.seed), {})[row.collection] = row
    found = []
    for (name, split, seed), by_collection in measured.items():
        if len(collections) > 1 and by_collection.keys() == collections:
            shared = set.intersection(*(set(row.metrics) for row in by_collection.values()))
            wholes: dict[str, list[Row]] = {}
            for collection, row in by_collection.items():
                wholes.setdefault(collection.partition("/")[0], []).append(row)
            means = {
                metric: float(np.mean([np.mean([row.metrics[metric] for row in parts]) for parts in wholes.values()]))
                for metric in sorted(shared)
            }
            found.append(Row(name, AVERAGE, split, means, seed=seed))
    return found


def _number(seeds: Sequence[Row], metric: str) -> str:
    values = [100 * row.metrics[metric] for row in seeds if metric in row.metrics]
    if not values:
        return MISSING
    mean = f"{np.mean(values):.1f}"
    return f"{mean} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else mean


def _mark_best(cells: list[list[Cell]]) -> None:
    """Mark the largest number of each column as it is shown: what reads equal is equally good."""
    for column in zip(*cells, strict=True):
        shown = [(float(cell.text.split()[0]), cell) for cell in column if cell.text != MISSING]
        if len(shown) > 1:
            highest = max(value for value, _ in shown)
            for value, cell in shown:
                cell.best = value == highest


def _mark_significant(
    table: Table, groups: dict[tuple[str, str, str], list[Row]], columns: list[Column], how: Significance
) -> None:
    if how.baseline not in table.names:
        raise UserError(f"table.baseline: no row is called {how.baseline!r}; rows: {', '.join(table.names)}")
    tested: list[tuple[Cell, str, Column, float, float]] = []
    for name, cells in zip(table.names, table.cells, strict=True):
        for column, cell in zip(columns, cells, strict=True):
            sides = [_over_seeds(groups.get((one, *column[:2]), []), column[2]) for one in (name, how.baseline)]
            if name != how.baseline and sides[0] and sides[1]:
                result = compare(sides[0], sides[1], column[2], how.test, how.permutations, how.seed)
                tested.append((cell, name, column, *result))
    for (cell, name, column, difference, _), p in zip(tested, holm([one[-1] for one in tested]), strict=True):
        cell.marked = p < how.level
        table.comparisons.append(Comparison(name, column, difference, p))
    if tested:
        times = f", {how.permutations:,} permutations" if how.test == "randomisation" else ""
        table.notes.append(
            f"{MARK} differs from {how.baseline}: {TESTS[how.test]} over queries, two-sided{times}, "
            f"p < {how.level:g}, Holm-corrected over the {len(tested)} tests of the table."
        )


def _over_seeds(seeds: Sequence[Row], metric: str) -> Evaluation | None:
    """The mean over seeds of each query's value; None where a row has no values for each query."""
    if not seeds or any(metric not in row.per_query for row in seeds):
        return None
    ids = list(seeds[0].query_ids)
    if any(list(row.query_ids) != ids for row in seeds):
        raise UserError(
            f"table: the seeds of {seeds[0].name!r} were measured on different queries; evaluate them again"
        )
    return Evaluation(ids, {metric: np.mean([row.per_query[metric] for row in seeds], axis=0)})
