"""The choice among the jobs of a sweep (``table.choose``): of several values of a key, the value best on dev is shown."""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from condensery.pipeline.config import ChooseInSweep
from condensery.reporting.results import Row

DEV = "dev"


class Candidate(NamedTuple):
    """A job of the sweep.

    Attributes:
        setting: the settings of the job, without the key of the choice and without the seed.
        value: the job's value of the key.
        rows: the job's rows.
    """

    setting: str
    value: str
    rows: Sequence[Row]


class Chosen(NamedTuple):
    """The result of a choice.

    Attributes:
        rows: the rows of each job that are kept.
        notes: sentences that say what was chosen, from which values, by which scores.
        not_chosen: settings in which a row has several values of the key, and none could be chosen.
    """

    rows: list[list[Row]]
    notes: list[str]
    not_chosen: set[str]


def chosen_rows(jobs: Sequence[Candidate], choose: ChooseInSweep, metric: str) -> Chosen:
    """Choose a value of the key for each setting: one for all rows if the config names a row, otherwise one for each row.

    The value with the highest mean over the seeds on dev is chosen. If several have this mean, the first in the sweep is
    chosen. A value that lacks a seed is not chosen. If no value was measured on dev, all jobs are kept.

    Args:
        jobs: jobs of the sweep.
        choose: config of the choice.
        metric: metric by which values are chosen.
    """
    chosen = Chosen([[] for _ in jobs], [], set())
    for setting in dict.fromkeys(job.setting for job in jobs):
        own = {at: job for at, job in enumerate(jobs) if job.setting == setting}
        best: dict[str, str | None] = {}
        for name in [choose.row] if choose.row else dict.fromkeys(row.name for job in own.values() for row in job.rows):
            best[name], note = _best(list(own.values()), name, choose, metric)
            if note:
                chosen.notes.append(note)
                chosen.not_chosen.update([setting] if best[name] is None else [])
        for at, job in own.items():
            chosen.rows[at] += [row for row in job.rows if best[choose.row or row.name] in (None, job.value)]
    return chosen


def _best(jobs: Sequence[Candidate], name: str, choose: ChooseInSweep, metric: str) -> tuple[str | None, str]:
    """Return the best value of the key for one row in one setting, and a sentence on the choice.

    The value is None if none could be chosen. The sentence is empty if there is nothing to choose.
    """
    scores: dict[str, dict[str, float]] = {job.value: {} for job in jobs}  # value -> artifact of a seed -> score
    made: dict[str, set[str]] = {job.value: set() for job in jobs}
    for job in jobs:
        for row in (row for row in job.rows if row.name == name):
            made[job.value].add(row.artifact)
            if row.split == DEV and not row.failed and metric in row.metrics:
                scores[job.value][row.artifact] = row.metrics[metric]
    if len(scores) == 1 or (not choose.row and len({frozenset(one) for one in made.values()}) == 1):
        return None, ""  # there is one value, or the key does not change the row, as for BM25
    what = f"{choose.key.rpartition('.')[2]} of {'all rows' if choose.row else name}"
    what += f" ({jobs[0].setting})" if jobs[0].setting else ""
    seeds = max(map(len, scores.values()))
    if not seeds:
        return None, f"Not chosen: {what}, because {metric} of {name} on dev is not measured; set table.split=dev,test."
    means = {value: 100 * mean(own.values()) for value, own in scores.items() if len(own) == seeds}
    best = max(means, key=means.__getitem__)
    shown = ", ".join(f"{value}: {means[value]:.1f}" if value in means else f"{value}: –" for value in scores)
    over = f", mean of {seeds} seeds" if seeds > 1 else ""
    return best, f"Chosen by {metric} of {name} on dev: {what} = {best} ({shown}{over})."
