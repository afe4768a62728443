"""Write the conclusion of a table of retrievers: is the best row significantly better than BM25 or another reference?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import CHANCE, FEW, compare, holm
from condensery.reporting.results import Row
from condensery.reporting.table import Comparison, Measured, Significance, over_seeds
from condensery.retrieval.indexes.interface import UNMATCHED

BM25 = "bm25"  # kind of the stage that builds a BM25 index
NOT_DENSE = (BM25, "fuse", "rerank", "read_run")  # a kind with such an ending, such as expanded_bm25, is not dense


@dataclass(frozen=True)
class SummaryRow:
    """Summary of one line of the table. A line holds all rows with one name; they differ only in their seeds.

    Attributes:
        name: name of the line.
        kind: kind of the stage that built its index.
        mean: mean of the metric over queries and seeds, from 0 to 1.
        evaluation: value of the metric for each query, averaged over the seeds.
    """

    name: str
    kind: str
    mean: float
    evaluation: Evaluation


@dataclass(frozen=True)
class Lines:
    """The lines of a table that can be compared. A line holds all rows with one name; they differ only in their seeds.

    Attributes:
        metric: the first metric of the table.
        measured: the rows, grouped by name; no rows if the lines cannot be compared.
        kinds: artifact of a row -> kind of the stage that built its index.
        how: the table's baseline, significance test and level.
        tested: the table's comparisons with its baseline.
        left_out: one sentence for each row that is excluded from all comparisons. Each sentence begins with a space.
    """

    metric: str
    measured: Measured
    kinds: Mapping[str, str]
    how: Significance
    tested: Sequence[Comparison] = ()
    left_out: str = ""

    @cached_property
    def systems(self) -> list[SummaryRow]:
        """One summary for each line."""
        systems = []
        for name, (seeds,) in zip(self.measured.names, self.measured.seeds, strict=True):
            evaluation = over_seeds(seeds, self.metric)
            assert evaluation is not None, "`_comparable` saw to it"
            mean = float(np.mean([row.metrics[self.metric] for row in seeds]))
            systems.append(SummaryRow(name, self.kinds[seeds[0].artifact], mean, evaluation))
        return systems

    def p_values(self, reference: int) -> dict[int, float]:
        """Test all other lines against the line ``reference``, and return index -> Holm-corrected p-value."""
        others = [i for i in range(len(self.systems)) if i != reference]
        against, how = self.systems[reference].evaluation, self.how
        found = [compare(self.systems[i].evaluation, against, self.metric, how.test)[1] for i in others]
        return dict(zip(others, holm(found), strict=True))

    def p_value(self, at: int, reference: int) -> float:
        """Return the p-value of a line against the line ``reference``.

        If the table already contains this test, its p-value is used. Otherwise the p-value is Holm-corrected over the tests
        of all lines against the reference, because the best of many lines may be ahead only by chance.
        """
        columns = [(one.name, one.column) for one in self.tested]
        column = self.systems[at].name, self.metric
        if column in columns and self.measured.baseline_of(at, self.how.baseline) == reference:
            return self.tested[columns.index(column)].p
        return self.p_values(reference)[at]


def conclusion(lines: Lines) -> str:
    """Return a sentence on the best row by the first metric.

    If this sentence does not mention the best dense row, a second sentence compares that row with BM25.

    The best row is compared with a reference: the best BM25 row, else the table's baseline, else the first row. If the best
    row itself is the reference, it is compared with the second best row. If most queries of a BM25 row share no term with any
    passage, the row is excluded from all comparisons, and a last sentence says so.

    Returns:
        The sentences. If there is nothing to compare, only the sentences on excluded rows remain. There is nothing to compare
        if there are fewer than two lines, several collections, splits or sets of queries, or a row without per-query values.
    """
    systems = lines.systems
    if len(systems) < 2:
        return lines.left_out.lstrip()
    best = _best(systems)
    reference = _reference(lines, best)
    other = reference if reference != best else _best(systems, but=[best])
    p = lines.p_value(other if reference == best else best, reference)
    return _on_the_best(lines, best, other, reference == best, p) + _on_dense(systems, {best, other}) + lines.left_out


def lines_of(
    rows: Sequence[Row], kinds: Mapping[str, str], how: Significance, tested: Sequence[Comparison] = ()
) -> Lines:
    """Return the measured rows that can be compared, arranged as in the table.

    Rows with the same name and different seeds form one line.

    Args:
        rows: the rows of the table; failed rows are ignored.
        kinds: artifact of a row -> kind of the stage that built its index. A row without a kind is not a retriever.
        how, tested: as in ``Lines``.
    """
    rows = [row for row in rows if not row.failed]
    metric = next((name for row in rows for name in row.metrics), "")
    if not _comparable(rows, kinds, metric):
        return Lines(metric, Measured([], [metric], []), kinds, how)
    unmatched = dict.fromkeys(row.name for row in rows if _is_unmatched(row, kinds))
    left_out = "".join(f" {name} is compared with no row, because most queries {UNMATCHED}." for name in unmatched)
    named = {one.name: [row for row in rows if row.name == one.name] for one in rows if one.name not in unmatched}
    measured = Measured(list(named), [metric], [[seeds] for seeds in named.values()])
    return Lines(metric, measured, kinds, how, tested, left_out)


def _comparable(rows: Sequence[Row], kinds: Mapping[str, str], metric: str) -> bool:
    """Return whether the rows can be compared.

    All rows must be retrievers evaluated on the same collection, split and queries, with a per-query value of the metric.
    """
    query_sets = {frozenset(row.query_ids) for row in rows}
    places = {(row.collection, row.split) for row in rows}
    whole = all(row.artifact in kinds and metric in row.metrics and metric in row.per_query for row in rows)
    return whole and len(query_sets) == len(places) == 1 and bool(next(iter(query_sets)))


def _is_unmatched(row: Row, kinds: Mapping[str, str]) -> bool:
    """Return whether the row is a BM25 row that found nothing for most queries. A lead over such a row is meaningless."""
    return kinds[row.artifact] == BM25 and any(UNMATCHED in text for text in row.warnings)


def _best(systems: Sequence[SummaryRow], among: Sequence[int] | None = None, but: Sequence[int] = ()) -> int:
    """Return the index of the system with the highest mean; of equal systems, the last.

    ``among``: indices to choose from; None = all. ``but``: indices to exclude.
    """
    places = [i for i in (range(len(systems)) if among is None else among) if i not in but]
    return max(places, key=lambda i: (systems[i].mean, i))


def _reference(lines: Lines, best: int) -> int:
    if lexical := [i for i, system in enumerate(lines.systems) if system.kind == BM25]:
        return _best(lines.systems, lexical)
    return lines.measured.baseline_of(best, lines.how.baseline) or 0


def _on_the_best(lines: Lines, at: int, against: int, is_next: bool, p: float) -> str:
    best, other, metric, level = lines.systems[at], lines.systems[against], lines.metric, lines.how.level
    queries = len(best.evaluation.query_ids)
    if p < level:
        whom = f"the next, {other.name}" if is_next else other.name
        return f"{best.name} is ahead of {whom}: {metric} {_percent(best)} against {_percent(other)} (p < {level:g})."
    few = f" {CHANCE.capitalize()}." if queries < FEW else ""
    if math.isclose(best.mean, other.mean, abs_tol=1e-12):
        return f"{best.name} is level with {other.name}: both have {metric} {_percent(best)}.{few}"
    return (
        f"{best.name} has the highest {metric}, {_percent(best)} against {_percent(other)} of {other.name}:"
        f" {queries:,} {'query shows' if queries == 1 else 'queries show'} no significant difference (p = {p:.2g}).{few}"
    )


def _on_dense(systems: Sequence[SummaryRow], mentioned: set[int]) -> str:
    """Return a sentence that compares the best purely dense row with BM25.

    The sentence is empty if there is no dense row or no BM25 row, or if the dense row is mentioned already.
    """
    dense = [i for i, system in enumerate(systems) if not system.kind.endswith(NOT_DENSE)]
    lexical = [i for i, system in enumerate(systems) if system.kind == BM25]
    if not dense or not lexical:
        return ""
    best, bm25 = _best(systems, dense), systems[_best(systems, lexical)]
    if best in mentioned or not bm25.mean:
        return ""
    share = systems[best].mean / bm25.mean
    return f" The best dense row is {systems[best].name}, {_percent(systems[best])}: {share:.2f} of {bm25.name}."


def _percent(system: SummaryRow) -> str:
    return f"{100 * system.mean:.1f}"
