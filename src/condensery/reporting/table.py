"""Build the table of a run: one line per system, one column per metric, numbers in percent.

The best numbers and significant differences are marked. Rows with the same name and different seeds become one line, with
mean and standard deviation over the seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, number_of
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import PERMUTATIONS, Interval, Test, compare, four_digits, holm, interval
from condensery.reporting.results import Row

WIDE = 10  # a table of more columns is shown transposed
IN_BOLD = "In percent; the best of each {} in bold."
MARK, MISSING = "†", "–"
AVERAGE = "average"  # name of the collection of a mean over collections
COMPARED = ["metric", "difference", "95 %", "p", "p, seeds too"]  # header of the table of differences
TESTS = {"randomisation": "paired randomisation test", "t": "paired t-test"}
Best = Literal["highest", "lowest", "none"]

Column = tuple[str, str, str]  # collection, split, metric


@dataclass(frozen=True)
class Significance:
    """Settings of the significance test.

    Attributes:
        baseline: name of the line against which the other lines are tested; None = nothing is tested.
        test: the significance test.
        level: significance level, with which the Holm-corrected p-value is compared.
    """

    baseline: str | None = None
    test: Test = "randomisation"
    level: float = 0.01


@dataclass(frozen=True)
class Comparison:
    """The comparison of a line with the baseline in one column.

    Attributes:
        name, column: labels of the line and of the column.
        difference: mean of the line minus mean of the baseline, as a fraction.
        p: Holm-corrected p-value of the test over queries.
        interval: confidence interval of the difference over queries and seeds.
        baseline: name of the baseline.
    """

    name: str
    column: str
    difference: float
    p: float
    interval: Interval
    baseline: str

    def shown(self) -> list[str]:
        """Return the cells for the columns ``COMPARED`` that follow the metric. Differences are in percentage points."""
        low, high = (f"{100 * end:+.1f}" for end in (self.interval.low, self.interval.high))
        return [f"{100 * self.difference:+.1f}", f"{low} to {high}", four_digits(self.p), four_digits(self.interval.p)]


@dataclass
class Cell:
    """One cell of the table: a number, or several different numbers from papers that disagree.

    Attributes:
        text: text of the cell, without marks.
        best: whether the number is the best of its column among the lines of its block.
        marked: whether the number differs significantly from the baseline.
        published: whether the number is printed in a paper, not measured here.
        number: the number shown, by which ``best`` is decided; ``None`` if there is none.
        p: Holm-corrected p-value against the baseline; ``None`` if there was no test.
        place: on a page, the HTML id of the element with the origin of the number; otherwise empty.
    """

    text: str = MISSING
    best: bool = False
    marked: bool = False
    published: bool = False
    number: float | None = None
    p: float | None = None
    place: str = ""


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a table under one heading: a class of published lines, or measured lines.

    ``size``: number of lines.
    """

    heading: str
    size: int
    published: bool = False


@dataclass
class Table:
    """A table, independent of its output format.

    Attributes:
        header: labels of the columns.
        names: labels of the lines.
        cells: cells of each line.
        sources: source of each line's numbers; empty if all numbers were measured in one run.
        origins: how each line was or would be measured: artifacts, commands, or a reason why not; empty without ``sources``.
        blocks: blocks of lines, in order; empty if all lines form one block without a heading.
        turned: whether the table is shown transposed, because it has many columns.
        conclusion: result of the table in one or two sentences; may be empty.
        notes: sentences below the table.
        comparisons: comparisons of measured lines with the baseline.
    """

    title: str
    header: list[str]
    names: list[str]
    cells: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    turned: bool = False
    conclusion: str = ""

    def by_block(self) -> Iterator[tuple[Block, range]]:
        """Yield each block with the indices of its lines."""
        start = 0
        for block in self.blocks or [Block("", len(self.names))]:
            yield block, range(start, start + block.size)
            start += block.size


def build_table(
    rows: Sequence[Row],
    metrics: Sequence[str] | None = None,
    significance: Significance | None = None,
    title: str = "",
    costs: Sequence[str] = (),
) -> Table:
    """Arrange rows as a table. Lines are in the order in which the rows' names first appear.

    If the rows have several collections, further columns show the mean over the collections. A failed row becomes a line of
    dashes, or is left out if other seeds of its line were measured. A note gives the reason of the failure.

    Args:
        rows: the rows of one or several collections.
        metrics: the metrics in the order of the columns; None = all metrics, in the order in which they appear.
        significance: settings of the test against a baseline; None = no test.
        title: the title. If there is only one collection and split, they are added, with the number of queries.
        costs: costs of the rows, in columns after the metrics, without mark or test.

    Raises:
        UserError: all rows failed, or the baseline is not among the rows.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    first = [*warnings(rows), *failures(rows)]
    rows = [row for row in rows if not row.failed]
    if not rows:
        raise UserError("table: there is no result to show")
    rows = [*rows, *averages(rows)]
    groups: dict[tuple[str, str, str], list[Row]] = {}  # (name, collection, split) -> the rows of its seeds
    for row in rows:
        groups.setdefault((row.name, row.collection, row.split), []).append(row)
    places = list(dict.fromkeys((row.collection, row.split) for row in rows))
    chosen = [*(metrics or dict.fromkeys(metric for row in rows for metric in row.metrics)), *costs]
    columns: list[Column] = [(*place, metric) for place in places for metric in chosen]
    single = len(places) == 1
    queries = number_of(max(len(row.query_ids) for row in rows), "queries")
    where = f"{', '.join(places[0])}{f' ({queries})' * (queries[0] != '0')}" if single else ""
    seeds = [[groups.get((name, *column[:2]), []) for column in columns] for name in names]
    measured = Measured(names, [metric for *_, metric in columns], seeds)
    table = Table(
        title=" · ".join(part for part in (title, where) if part) or "Results",
        header=[column[2] if single else " ".join(column) for column in columns],
        names=names,
        cells=measured.cells(),
        turned=len(columns) > WIDE,
    )
    mark_best(table.cells, ["none" if metric in costs else "highest" for metric in measured.metrics])
    table.notes = [IN_BOLD.format("line" if table.turned else "column"), *first, *measured.notes()]
    if costs:
        models = " Training is the sum over all models of a row." if any("training" in one for one in costs) else ""
        table.notes.append(f"Not in percent: {', '.join(costs)}.{models}")
    if significance:
        if not measured.known(significance.baseline):
            raise UserError(f"table.baseline: no row is called {significance.baseline!r}; rows: {', '.join(names)}")
        mark_significant(table, [(table.cells, measured)], significance)
    return table


def averages(rows: Sequence[Row]) -> list[Row]:
    """For each system and seed, return a row with the mean of each metric over the collections.

    Only systems that were evaluated on the same split of all collections get such a row. All collections named
    ``whole/part`` with the same ``whole`` are counted as one collection, as CQADupStack is in BEIR.
    """
    if len({row.collection for row in rows}) < 2:
        return []
    counted = [row for row in rows if "/" not in row.collection]
    return _means([*counted, *wholes(rows)], {AVERAGE: {_whole(row) for row in rows}}, lambda row: AVERAGE)


def wholes(rows: Sequence[Row]) -> list[Row]:
    """For each system and seed, return a row with the mean of each metric over the parts of a collection.

    Parts are named ``whole/part``, as for CQADupStack. Only systems that were evaluated on the same split of all parts in
    ``rows`` get such a row.
    """
    in_parts = [row for row in rows if "/" in row.collection]
    parts: dict[str, set[str]] = {}
    for row in in_parts:
        parts.setdefault(_whole(row), set()).add(row.collection)
    return _means(in_parts, parts, _whole)


def _whole(row: Row) -> str:
    return row.collection.partition("/")[0]


def _means(rows: Sequence[Row], parts: Mapping[str, set[str]], whole: Callable[[Row], str]) -> list[Row]:
    """For each system, split, seed and group of collections, return a row with the means of the metrics.

    A system that lacks results on any collection of the group gets no row. Metrics that any collection lacks are left out.

    ``parts``: group -> its collections. ``whole``: function that returns the group to which a row belongs.
    """
    measured: dict[tuple[str, str, int | None, str], dict[str, Row]] = {}
    for row in rows:
        measured.setdefault((row.name, row.split, row.seed, whole(row)), {})[row.collection] = row
    mean_rows = []
    for (name, split, seed, of), own in measured.items():
        if own.keys() == parts[of]:
            shared = set.intersection(*(set(row.metrics) for row in own.values()))
            means = {metric: float(np.mean([row.metrics[metric] for row in own.values()])) for metric in sorted(shared)}
            if means:
                row = Row(name, of, split, means, seed=seed)
                one = next(iter(own.values()))
                mean_rows.append(replace(row, system=one.system, settings=one.settings, configs=one.configs))
    return mean_rows


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return one note for each different warning about the data from which the numbers were computed."""
    pairs = [(row.collection, str(text).rstrip(".")) for row in rows for text in row.warnings]
    return [f"Warning: {f'{collection}: ' if collection else ''}{text}." for collection, text in dict.fromkeys(pairs)]


def failures(rows: Sequence[Row]) -> list[str]:
    """Return one note for each reason of failure, with the rows concerned.

    A row is named with its seed if another seed of it was measured.
    """
    measured = {row.name for row in rows if not row.failed}
    by_reason: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.failed:
            name = f"{row.name}, seed {row.seed}" if row.name in measured else row.name
            by_reason.setdefault(row.failed.rstrip("."), {})[name] = None
    return [f"{MISSING} {', '.join(names)}: {why}." for why, names in by_reason.items()]


@dataclass(frozen=True)
class Measured:
    """The measured rows, arranged by the lines and columns of a table.

    Attributes:
        names: names of the lines.
        metrics: metric of each column.
        seeds: for each line and column, one row per seed; empty if nothing was measured.
        where: name of the collection, if the table has blocks of several collections; otherwise empty.
    """

    names: Sequence[str]
    metrics: Sequence[str]
    seeds: Sequence[Sequence[Sequence[Row]]]
    where: str = ""

    def cells(self) -> list[list[Cell]]:
        """Return the cells of each line, in percent, with the standard deviation over the seeds."""
        return [[_cell(rows, metric) for rows, metric in zip(line, self.metrics, strict=True)] for line in self.seeds]

    def known(self, baseline: str | None) -> bool:
        """Return whether any line can be tested against the row named ``baseline``."""
        return any(self.baseline_of(at, baseline) is not None for at in range(len(self.names)))

    def baseline_of(self, at: int, baseline: str | None) -> int | None:
        """Return the index of the line against which the line with index ``at`` is tested; None if there is none.

        In a sweep, it is the line of the baseline with the same settings. Otherwise, it is the line named ``baseline``.
        """
        if baseline is None:
            return None
        name = self.names[at]
        system = next((row.system for rows in self.seeds[at] for row in rows if row.system), name)
        wanted = (name.removesuffix(system) + baseline, baseline)
        return next((self.names.index(one) for one in wanted if one in self.names), None)

    def notes(self) -> list[str]:
        """Return a note that explains ±; empty if no line has several seeds."""
        numbers = sorted({len(rows) for line in self.seeds for rows in line if len(rows) > 1})
        return [f"± is the standard deviation over {' or '.join(map(str, numbers))} seeds."] if numbers else []


def _cell(seeds: Sequence[Row], metric: str) -> Cell:
    values = [100 * row.metrics[metric] for row in seeds if metric in row.metrics]
    costs = [row.costs[metric] for row in seeds if metric in row.costs]
    values, digits = (values, 1) if values else (costs, 2)
    if not values:
        return Cell()
    mean = f"{np.mean(values):.{digits}f}"
    return Cell(f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean, number=float(mean))


def mark_best(cells: Sequence[Sequence[Cell]], best: Sequence[Best], within: float = 0.0) -> None:
    """Mark the best number of each column.

    Numbers that are equal after rounding are all marked. If a column has only one number, it is not marked.

    Args:
        cells: cells of each line.
        best: for each column, which number is the best.
        within: maximum difference from the best number at which another number is also marked.
    """
    for wanted, column in zip(best, zip(*cells, strict=True), strict=False):
        shown = [(cell.number, cell) for cell in column if cell.number is not None]
        if len(shown) > 1 and wanted != "none":
            choose: Callable[..., float] = max if wanted == "highest" else min
            top = choose(value for value, _ in shown)
            for value, cell in shown:
                cell.best = abs(value - top) <= within + 1e-9


def mark_significant(
    table: Table, blocks: Sequence[tuple[Sequence[Sequence[Cell]], Measured]], how: Significance
) -> None:
    """Test each measured line against the baseline of its block, in each column, and mark significant differences.

    The comparisons and a note are added to ``table``. A row without per-query values is not tested.

    Args:
        table: the table.
        blocks: the measured blocks, with their cells.
        how: baseline, test and level.

    Raises:
        UserError: two seeds or two systems were evaluated on different queries.
    """
    tested: list[tuple[Cell, Comparison]] = []
    swept = False
    for cells, measured in blocks:
        for place, (name, line, seeds) in enumerate(zip(measured.names, cells, measured.seeds, strict=True)):
            against = measured.baseline_of(place, how.baseline)
            if against is None or against == place:
                continue
            swept |= measured.names[against] != how.baseline
            for at, (metric, cell) in enumerate(zip(measured.metrics, line, strict=True)):
                pair = seeds[at], measured.seeds[against][at]
                system, baseline = (over_seeds(rows, metric) for rows in pair)
                if system and baseline:
                    difference, p = compare(system, baseline, metric, how.test)
                    reach = interval(*(of_each_seed(rows, metric, system.query_ids) for rows in pair))
                    full = f"{name} ({measured.where})" if measured.where else name
                    one = Comparison(full, table.header[at], difference, p, reach, measured.names[against])
                    tested.append((cell, one))
    for (cell, one), p in zip(tested, holm([one.p for _, one in tested]), strict=True):
        cell.marked, cell.p = p < how.level, p
        table.comparisons.append(replace(one, p=p))
    if tested:
        times = f", {PERMUTATIONS:,} permutations" if how.test == "randomisation" else ""
        table.notes.append(
            f"{MARK if any(cell.marked for cell, _ in tested) else 'No score'} differs from {how.baseline}"
            f"{' of the same settings' * swept}: {TESTS[how.test]} over queries, two-sided{times}, "
            f"p < {how.level:g}, Holm-corrected over the {number_of(len(tested), 'tests')} of the table."
        )


def over_seeds(seeds: Sequence[Row], metric: str) -> Evaluation | None:
    """Average each query's value of the metric over the seeds. Return None if a row has no per-query values."""
    if not seeds or any(metric not in row.per_query for row in seeds):
        return None
    ids = list(seeds[0].query_ids)
    return Evaluation(ids, {metric: np.mean(of_each_seed(seeds, metric, ids), axis=0)})


def of_each_seed(seeds: Sequence[Row], metric: str, ids: Sequence[str]) -> list[NDArray[np.float64]]:
    """Return one array per seed: the value of the metric for each query, float64 (queries,), in the order of ``ids``.

    Raises ``UserError`` if the seeds were evaluated on different queries.
    """
    values = []
    for row in seeds:
        place = {query: i for i, query in enumerate(row.query_ids)}
        if place.keys() != set(ids):
            raise UserError(f"table: the seeds of {row.name!r} were measured on different queries; evaluate them again")
        values.append(np.asarray(row.per_query[metric])[[place[query] for query in ids]])
    return values
