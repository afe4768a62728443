"""The differences between rows of a study, each a test of its own, as the pages beside this file print them.

    python experiments/differences.py RESULTS ARTIFACTS METRICS "ROW :: BASELINE" ...

RESULTS is the results.json of a run or a sweep, ARTIFACTS its folder outputs/artifacts, METRICS a list: MRR@10,Recall@100.
A line for each pair: the mean difference in points (percent), the 95 % interval with other queries and other seeds, and the p
of a paired randomisation test over queries on the means of the seeds.
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
    measured: dict[str, list[Evaluation]] = defaultdict(list)  # of each seed, in their order
    for row in sorted(read_results(results), key=lambda row: row.seed or 0):
        measured[row.name].append(Evaluation.load(artifacts / row.artifact / "evaluation.npz"))
    lines = [
        f"| | |{''.join(f' {metric} | 95 % | p |' for metric in metrics)}",
        f"|---|---|{'--:|--:|--:|' * len(metrics)}",
    ]
    for pair in pairs:
        names = [name.strip() for name in pair.split("::")]
        for name in names:
            if name not in measured or len(names) != 2:
                raise UserError(f"{pair!r}: two rows with :: between them; there are {sorted(measured)}")
        cells = [_cells(measured[names[0]], measured[names[1]], metric) for metric in metrics]
        lines.append(f"| {names[0]} | against {names[1]} | {' | '.join(cells)} |")
    return lines


def _cells(system: Sequence[Evaluation], baseline: Sequence[Evaluation], metric: str) -> str:
    queries = system[0].query_ids
    ours, theirs = ([_values(one, metric, queries) for one in side] for side in (system, baseline))
    where = interval(ours, theirs)
    means = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    p = f"{randomisation_test(means):.4f}".removeprefix("0")
    return f"{100 * means.mean():+.1f} | {100 * where.low:.1f} to {100 * where.high:.1f} | {p}"


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
