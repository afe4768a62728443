"""Test the differences between rows of a study, each with its own test, as on the pages in this folder.

    python experiments/differences.py RESULTS ARTIFACTS METRICS "ROW :: BASELINE" ...

RESULTS is the results.json of a run or a sweep, ARTIFACTS its folder outputs/artifacts, METRICS a list: MRR@10,Recall@100.
Each pair has a line with the mean difference in percentage points, its 95 % confidence interval over queries and seeds, and a
p-value. The p-value is that of a paired randomisation test over queries, on the means over the seeds. A pair of this form
tests whether the difference before ``::`` is larger than the one after it:

    "ROW - BASELINE :: ROW - BASELINE"

All four rows must have the same seeds, and the differences are compared seed by seed.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import interval, randomisation_test
from condensery.reporting.results import read_results


def differences(results: Path, artifacts: Path, metrics: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """Return the lines of a Markdown table. Raises ``UserError`` for a row that does not exist, or a pair without ``::``."""
    measured = measured_rows(results, artifacts)
    lines = [
        f"| | |{''.join(f' {metric} | 95 % | p |' for metric in metrics)}",
        f"|---|---|{'--:|--:|--:|' * len(metrics)}",
    ]
    for pair in pairs:
        names = [name.strip() for name in pair.split("::")]
        sides = [[name] if name in measured else [part.strip() for part in name.split(" - ")] for name in names]
        rows = [row for side in sides for row in side]
        if len(sides) != 2 or len(sides[0]) != len(sides[1]) or len(rows) > 4 or not set(rows) <= set(measured):
            raise UserError(f"{pair!r}: two rows with :: between them, or two leads; there are {sorted(measured)}")
        seeds = {tuple(measured[row]) for row in rows if len(measured[row]) > 1}
        if len(rows) == 4 and len(seeds) > 1:
            raise UserError(f"{pair!r}: leads are of rows with the same seeds; these have {sorted(seeds)}")
        found = [cells(*(list(measured[row].values()) for row in rows), metric=metric) for metric in metrics]
        lines.append(f"| {names[0]} | against {names[1]} | {' | '.join(found)} |")
    return lines


def measured_rows(results: Path, artifacts: Path) -> dict[str, dict[int, Evaluation]]:
    """Return the evaluations of each row, in the order of their seeds. A row without a seed has the seed 0."""
    measured: dict[str, dict[int, Evaluation]] = defaultdict(dict)
    for row in sorted(read_results(results), key=lambda row: row.seed or 0):
        if row.artifact:
            measured[row.name][row.seed or 0] = Evaluation.load(artifacts / row.artifact / "evaluation.npz")
    return measured


def cells(*rows: Sequence[Evaluation], metric: str) -> str:
    """Return difference, interval and p of two rows. For four rows, the difference is (first - second) - (third - fourth)."""
    queries = rows[0][0].query_ids
    values = [np.stack([_values(one, metric, queries) for one in row]) for row in rows]  # (seeds, n) each
    if len(values) == 4:  # leads seed by seed; a row with one seed is used for each seed
        leads = (values[0] - values[1]) - (values[2] - values[3])
        values = [leads, np.zeros((1, len(queries)))]
    where = interval(*(list(row) for row in values))
    means = values[0].mean(axis=0) - values[1].mean(axis=0)
    p = f"{randomisation_test(means):.4f}".removeprefix("0")
    return f"{100 * means.mean():+.1f} | {100 * where.low:.1f} to {100 * where.high:.1f} | {p}"


def _values(evaluation: Evaluation, metric: str, queries: Sequence[str]) -> NDArray[np.float64]:
    """Return the value of each query, (n,)."""
    if list(evaluation.query_ids) != list(queries):
        raise UserError("the two rows were measured on different queries")
    if metric not in evaluation.per_query:
        raise UserError(f"{metric} was not measured; there are {sorted(evaluation.per_query)}")
    return evaluation.per_query[metric]


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    try:
        print(*differences(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]), sep="\n")
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
