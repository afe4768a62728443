"""The differences between rows of a study, each a test of its own, as the pages beside this file print them.

    python experiments/differences.py RESULTS ARTIFACTS METRICS "ROW :: BASELINE" ...

RESULTS is the results.json of a run or a sweep, ARTIFACTS its folder outputs/artifacts, METRICS a list: MRR@10,Recall@100.
A line for each pair: the mean difference in points (percent), the 95 % interval with other queries and other seeds, and the p
of a paired randomisation test over queries on the means of the seeds. Whether one lead is larger than another is asked with

    "ROW - BASELINE :: ROW - BASELINE"

where the lead of a seed is of two rows of that seed.
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
    """Lines of a Markdown table. Raises ``UserError`` for a row that is not there, or a pair without ``::``."""
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
        system, baseline = ([measured[row] for row in side] for side in sides)
        found = [cells(system, baseline, metric) for metric in metrics]
        lines.append(f"| {names[0]} | against {names[1]} | {' | '.join(found)} |")
    return lines


def measured_rows(results: Path, artifacts: Path) -> dict[str, list[Evaluation]]:
    """Of each row what its seeds measured, in the order of the seeds."""
    measured: dict[str, list[Evaluation]] = defaultdict(list)
    for row in sorted(read_results(results), key=lambda row: row.seed or 0):
        measured[row.name].append(Evaluation.load(artifacts / row.artifact / "evaluation.npz"))
    return measured


def cells(system: Sequence[Sequence[Evaluation]], baseline: Sequence[Sequence[Evaluation]], metric: str) -> str:
    """Difference, interval and p of two rows, or of two leads: a row and what it leads, each with its seeds."""
    queries = system[0][0].query_ids
    ours, theirs = (
        _lead([np.stack([_values(one, metric, queries) for one in row]) for row in side]) for side in (system, baseline)
    )
    where = interval(ours, theirs)
    means = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    p = f"{randomisation_test(means):.4f}".removeprefix("0")
    return f"{100 * means.mean():+.1f} | {100 * where.low:.1f} to {100 * where.high:.1f} | {p}"


def _lead(rows: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """(n,) of each seed, of one row, or of the first less the second seed by seed; a row of one seed goes with each."""
    if len(rows) == 1:
        return list(rows[0])
    if len(rows[0]) != len(rows[1]) and 1 not in (len(rows[0]), len(rows[1])):
        raise UserError(f"a lead is of two rows of one seed; these have {len(rows[0])} seeds and {len(rows[1])}")
    return list(rows[0] - rows[1])


def _values(evaluation: Evaluation, metric: str, queries: Sequence[str]) -> NDArray[np.float64]:
    """(n,) of each query."""
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
