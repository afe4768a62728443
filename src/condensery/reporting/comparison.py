"""Build a table of rows with published numbers and of measured rows, in separate blocks, with sources.

The best number of each block is marked.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from condensery.errors import number_of
from condensery.reporting import table as tables
from condensery.reporting.plain import as_typed
from condensery.reporting.published import PublishedRow, find
from condensery.reporting.results import Row
from condensery.reporting.table import AVERAGE, MARK, MISSING, WIDE, Block, Cell, Measured, Significance, Table
from condensery.reporting.table_layout import ColumnLayout, OwnRow, TableLayout, published_rows

PUBLISHED, NOT_MEASURED = "published", "not measured"
RECIPE = re.compile(r"\bexperiment=([\w/]+)")


def comparison(
    layout: TableLayout,
    rows: Sequence[Row],
    split: str,
    baseline: str | None = None,
    title: str = "",
    studies: Sequence[str] = (),
) -> Table:
    """Build the table that ``layout`` describes: rows with published numbers, then the measured rows that fit its columns.

    Args:
        layout: the columns, the rows with published numbers, and the significance test.
        rows: the measured rows.
        split: split of the measured numbers in columns whose layout names no split.
        baseline: name of the line against which measured lines are tested. Without such a line, nothing is tested.
        title: the title if the layout has no title.
        studies: studies of the table. Of several commands that measure a row of a paper, only the commands of these studies
            are shown, if there are any.

    Raises:
        UserError: systems, or seeds of one system, were evaluated on different queries.
    """
    table = Table(layout.title or title, list(layout.columns), [], [], turned=len(layout.columns) > WIDE)
    notes = _add_published(table, layout, studies)
    complete = [row for row in rows if not row.failed]
    means, of_means = _means(layout, complete)
    own, left_out = _measured(layout, [*complete, *means], split)
    added = [_add_measured(table, heading, measured, layout) for heading, measured in own]
    within = f" (published ones: within {layout.within:g} of it)" if layout.within else ""
    table.notes = [f"Shares in percent; in bold the best of each block{within}.", *notes]
    table.notes += [
        *tables.warnings(rows),
        *tables.failures(rows),
        *of_means,
        *dict.fromkeys(note for _, measured in own for note in measured.notes()),
    ]
    if left_out:
        table.notes.append(f"Measured, but with no number for these columns: {', '.join(left_out)}.")
    table.notes += _origins(table)
    for column in layout.columns.values():
        baseline = baseline.removesuffix(column.ending) if baseline else baseline
    if baseline is not None and own:
        how = Significance(baseline, layout.test, level=layout.level)
        known = [one for one in zip(added, (measured for _, measured in own), strict=True) if one[1].known(baseline)]
        tables.mark_significant(table, known, how)
        if not known:
            table.notes.append(f"No {MARK} is shown, because no measured row is called {baseline!r}.")
    return table


def _add_published(table: Table, layout: TableLayout, studies: Sequence[str]) -> list[str]:
    """Add the published blocks to ``table``, and return notes: the papers' citations, and the notes on the papers' tables."""
    papers: dict[str, str] = {}
    notes: dict[str, None] = {}
    blocks: dict[str, list[list[Cell]]] = {}
    for name, label, rows in published_rows(layout.published):
        given = layout.published[name][label]
        cells = (
            [_own_cell(given.values.get(column)) for column in layout.columns]
            if isinstance(given, OwnRow)
            else [_cell(rows, column.published or "") for column in layout.columns.values()]
        )
        blocks.setdefault(name, []).append(cells)
        table.names.append(label)
        table.cells.append(cells)
        source = given.source if isinstance(given, OwnRow) else ", ".join(row.source for row in rows)
        table.sources.append(f"{PUBLISHED}, {source}")
        table.origins.append(_how_measured(rows, studies))
        papers |= {row.paper.key: row.paper.citation for row in rows}
        notes |= dict.fromkeys(note for row in rows for note in row.table.notes)
    best = [column.best for column in layout.columns.values()]
    for name, lines in blocks.items():
        tables.mark_best(lines, best, layout.within)
        table.blocks.append(Block(f"{PUBLISHED}: {name}" if name else PUBLISHED, len(lines), published=True))
    return ["In italics: numbers that papers print, not measured here."] * bool(blocks) + [*papers.values(), *notes]


def _how_measured(rows: Sequence[PublishedRow], studies: Sequence[str]) -> str:
    """Return the commands that measure a published line, or only the commands of ``studies`` if there are any.

    If no command is of ``studies`` and there are reasons why the line is not measured, return the reasons instead.
    """
    commands = dict.fromkeys(command for row in rows for command in row.commands)
    own = [one for one in commands if {name.replace("/", "-") for name in RECIPE.findall(one)} & {*studies}]
    reasons = "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))
    return f"{NOT_MEASURED}: {reasons}" if reasons and not own else " or ".join(own or commands)


def _origins(table: Table) -> list[str]:
    """Return notes that say how each line was or would be measured. Published lines with the same command have one note."""
    measured: list[str] = []
    published: dict[str, list[str]] = {}
    for block, places in table.by_block():
        others = [table.names[i] for one, at in table.by_block() for i in at if one.published == block.published]
        for i in (i for i in places if table.origins[i]):
            name = table.names[i]
            if others.count(name) > 1:
                name = f"{block.heading.partition(': ')[2] or block.heading}: {name}"
            if block.published:
                published.setdefault(table.origins[i], []).append(name)
            else:
                measured.append(f"Measured: {name}: {table.origins[i]}.")
    for origin, names in published.items():
        what, is_none, why = origin.partition(f"{NOT_MEASURED}: ")
        shown = "; ".join(names)
        measured.append(f"Not measured: {shown}: {why}." if is_none else f"To measure {shown}: {what}")
    return measured


def published_cell(reference: str) -> Cell:
    """Return the cell for a row of a paper's table that has a single number."""
    (value,) = find(reference).values.values()
    return _own_cell(value)


def _own_cell(value: Decimal | None) -> Cell:
    return Cell(published=True) if value is None else Cell(f"{value:f}", published=True, number=float(value))


def _cell(rows: Sequence[PublishedRow], key: str) -> Cell:
    """Return the cell for several rows of papers in the column ``key``: ``data set/metric`` or ``data set/metric/condition``.

    The cell shows the rows' common number. If the rows disagree, it shows all different numbers with their sources.
    """
    plain = "/".join(key.split("/")[:2])  # a number printed without a condition counts for every condition
    printed = [(row, row.values.get(key, row.values.get(plain))) for row in rows]
    by_value = {value: [row for row, other in printed if other == value] for _, value in printed if value is not None}
    if len(by_value) < 2:
        return _own_cell(next(iter(by_value), None))
    papers = [row.paper.key for row in rows]
    marks = {
        value: ", ".join(row.source if papers.count(row.paper.key) > 1 else row.paper.key for row in own)
        for value, own in by_value.items()
    }
    text = " / ".join(f"{value:f} [{mark}]" for value, mark in marks.items())
    return Cell(text, published=True, number=float(max(by_value)))


def _add_measured(table: Table, heading: str, measured: Measured, layout: TableLayout) -> list[list[Cell]]:
    cells = measured.cells()
    tables.mark_best(cells, [column.best for column in layout.columns.values()])
    table.names += measured.names
    table.cells += cells
    seeds = [max(len(rows) for rows in line) for line in measured.seeds]
    table.sources += [f"measured, {number} seeds" if number > 1 else "measured, 1 seed" for number in seeds]
    table.origins += [_artifacts(row for rows in line for row in rows) for line in measured.seeds]
    table.blocks.append(Block(heading, len(cells)))
    return cells


def _artifacts(rows: Iterable[Row]) -> str:
    """Return the artifacts of a measured line, by seed."""
    by_seed: dict[int | None, dict[str, None]] = {}
    for row in (row for row in rows if row.artifact):
        by_seed.setdefault(row.seed, {})[row.artifact] = None
    return "; ".join(f"seed {MISSING if seed is None else seed} {', '.join(own)}" for seed, own in by_seed.items())


def _means(layout: TableLayout, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return the rows of means that the columns name, and notes on the collections that each mean covers.

    A system gets a mean only if it was measured on all collections that the other columns name. Otherwise its mean could not
    be compared with a published mean.
    """
    named = list(dict.fromkeys(filter(None, (column.collection for column in layout.columns.values()))))
    whole = [row for row in tables.wholes(rows) if row.collection in named]
    parts = {name: sorted({row.collection for row in rows if row.collection.startswith(f"{name}/")}) for name in named}
    notes = [f"{name}: the mean of {', '.join(own)}." for name, own in parts.items() if own and whole]
    wanted = [name for name in named if name != AVERAGE]
    if AVERAGE not in named:
        return whole, notes
    counted = [row for row in (*rows, *whole) if row.collection in wanted] if wanted else list(rows)
    done = tables.averages(counted) if not wanted or {row.collection for row in counted} == set(wanted) else []
    for name in {row.name for row in counted} - {row.name for row in done} if wanted else ():
        number = len({row.collection for row in counted if row.name == name})
        notes.append(f"No average of {name}: {number_of(number, f'of the {len(wanted)} collections were')} measured.")
    return [*whole, *done], sorted(notes)


def _measured(layout: TableLayout, rows: Sequence[Row], split: str) -> tuple[list[tuple[str, Measured]], list[str]]:
    """Return (heading, block) for each collection, and the names of the rows without a number for any column."""
    columns = list(layout.columns.values())
    single = all(column.collection or column.metric is None for column in columns)
    collections = [None] if single else list(dict.fromkeys(row.collection for row in rows if row.collection != AVERAGE))
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(_name(row, columns), []).append(row)
    blocks: list[tuple[str, Measured]] = []
    shown: set[str] = set()
    for collection in collections:
        lines = {
            name: [[row for row in own if _fits(row, column, columns, collection, split)] for column in columns]
            for name, own in named.items()
        }
        lines = {name: line for name, line in lines.items() if any(line)}
        if lines:
            splits = dict.fromkeys(row.split for line in lines.values() for own in line for row in own)
            heading = f"measured here{f': {collection}' if collection else ''} ({', '.join(splits)})"
            metrics = [column.metric or "" for column in columns]
            where = collection if len(collections) > 1 and collection else ""
            blocks.append((heading, Measured(list(lines), metrics, list(lines.values()), where)))
            shown |= lines.keys()
    return blocks, [name for name in named if name not in shown]


def _ending(row: Row, columns: Sequence[ColumnLayout]) -> str:
    """Return the ``ending`` of the first column whose ending is a suffix of the row's name; empty if there is none."""
    return next((column.ending for column in columns if column.ending and row.name.endswith(column.ending)), "")


def _fits(row: Row, column: ColumnLayout, columns: Sequence[ColumnLayout], collection: str | None, split: str) -> bool:
    """Return whether a measured row belongs in ``column``, in the block of ``collection``."""
    return (
        column.metric in row.metrics
        and _ending(row, columns) == column.ending
        and row.split == (column.split or split)
        and row.collection == (column.collection or collection)
        and all(as_typed(value) in _values(row, key, as_typed(value)) for key, value in column.where.items())
    )


def _values(row: Row, key: str, otherwise: str) -> Sequence[str]:
    """Return a row's values of a config key: [``otherwise``] if its stages lack the key (as BM25 may), [] if unknown."""
    return row.settings.get(key, row.configs.get(key, [otherwise] if row.configs else []))


def _name(row: Row, columns: Sequence[ColumnLayout]) -> str:
    """Return the name of the line that shows a row.

    It is the row's name without the column's ``ending``, and without the sweep settings by which columns select rows.
    """
    in_columns = {key.rpartition(".")[2] for column in columns for key in column.where}
    system = row.system or row.name
    label = row.name.removesuffix(system).removesuffix(" · ")
    ending = _ending(row, columns)
    words = [word for word in label.split() if in_columns.isdisjoint(re.findall(r"(?:^|,)(\w+)=", word))]
    return " · ".join(part for part in (" ".join(words), system.removesuffix(ending)) if part)
