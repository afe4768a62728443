"""The table, the figures and the page of a sweep; a failed job does not hide the results of other jobs."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from condensery.errors import shown
from condensery.pipeline.config import TableConfig
from condensery.pipeline.reports.chosen import Candidate, Chosen, chosen_rows
from condensery.pipeline.reports.figure_data import FigureJob, draw_figures, read_figures
from condensery.pipeline.reports.page_content import write_whole
from condensery.pipeline.reports.report import concluded, remove_tables, show_table, with_values
from condensery.pipeline.reports.study import SWEPT, command
from condensery.pipeline.reports.wandb_results import log_results
from condensery.reporting.html_page import Page
from condensery.reporting.plain import as_typed
from condensery.reporting.results import Row, read_results, write_results
from condensery.stages.base import Wandb

CANDIDATES = "stage.evaluate.candidates"
MEASURED_ON = frozenset({"table.split", "stage.evaluate.split", CANDIDATES, f"{CANDIDATES}_number"})


def report_of_sweep(folder: Path, records: Sequence[Mapping[str, Any]], config: DictConfig) -> list[str]:
    """Write ``results.json``, the table, the figures and the page over all jobs into ``folder``, and print the table.

    Args:
        folder: folder of the sweep.
        records: record of each job, in the order of the jobs.
        config: composed config of the sweep.

    Returns:
        the labels of the failed jobs, and the reasons why figures could not be drawn.
    """
    labels = labels_of([record["overrides"] for record in records])
    of_choice = OmegaConf.select(config, "table.choose.key") or ""
    of_jobs = of_systems([record["overrides"] for record in records])
    settings, groups = labels_of(of_jobs), labels_of(of_jobs, without=of_choice)
    jobs = list(zip(labels, records, strict=True))
    runs = [
        SweptRun(label, without_seed(setting), without_seed(group), record["overrides"], Path(record["folder"]))
        for (label, record), setting, group in zip(jobs, settings, groups, strict=True)
        if record["folder"]
    ]
    nothing_left = [(label, _last_line(record["error"])) for label, record in jobs if not record["folder"]]
    faults = _join(folder, runs, nothing_left, config) if runs else []
    reasons: dict[str, list[str]] = {}
    for label, record in jobs:
        if record["error"]:
            reasons.setdefault(_last_line(record["error"]), []).append(label or "all")
    failed = [label for those in reasons.values() for label in those]
    if failed:
        text = "; ".join(f"{', '.join(those)} ({shown(reason, 200)})" for reason, those in reasons.items())
        print(f"error: {len(failed)} of {len(records)} jobs failed: {text}", file=sys.stderr, flush=True)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr, flush=True)
    return [*failed, *faults]


class SweptRun(NamedTuple):
    """A job of a sweep that has left a run.

    Attributes:
        label: overrides that distinguish the job from other jobs.
        setting: overrides that distinguish its systems from the systems of other jobs, without the seed.
        group: the setting without the key of ``table.choose``.
        overrides: all overrides of the job.
        folder: folder of the run.
    """

    label: str
    setting: str
    group: str
    overrides: list[str]
    folder: Path


def _last_line(error: str | None) -> str:
    """Return the message of an error, which may be a traceback followed by a note on the stage."""
    lines = [line for line in (error or "").splitlines() if line.strip() and not line.startswith("(in the stage ")]
    return lines[-1].removeprefix("error: ") if lines else "no message"


def _join(folder: Path, runs: list[SweptRun], nothing_left: list[tuple[str, str]], config: DictConfig) -> list[str]:
    """Write one table over the run folders, the figures and the page; return the reasons why figures could not be drawn.

    Lines of the table that differ only in the seed become one line with mean and spread.
    """
    root = runs[0].folder.parents[1]
    composed = OmegaConf.load(runs[0].folder / "config.yaml")
    layout = TableConfig.model_validate(OmegaConf.to_container(composed.table, resolve=True))
    rows_of = [with_values(read_results(run.folder / "results.json"), root) for run in runs]
    rows_of, notes, not_chosen = _choose(runs, rows_of, layout)
    runs = [run if run.group in not_chosen else run._replace(setting=run.group) for run in runs]
    run_rows = [(run, row) for run, rows in zip(runs, rows_of, strict=True) for row in rows]
    rows = distinct_rows([(run.setting, row) for run, row in run_rows])
    rows = with_settings(rows, [(run.overrides, row) for run, row in run_rows])
    tables = []
    if any(not row.failed for row in rows):
        table, rows = concluded(rows, layout, folder.name, root)
        tables.append(show_table(replace(table, notes=[*notes, *table.notes]), folder))
    else:
        remove_tables(folder)
    write_results(folder / "results.json", rows)
    figures = OmegaConf.select(config, "figures")
    wanted = read_figures(OmegaConf.to_container(figures, resolve=True)) if figures else {}
    shown = [frozenset(row.name for row in rows) if layout.choose else None for rows in rows_of]
    jobs = [FigureJob(run.folder, run.setting, names) for run, names in zip(runs, shown, strict=True) if names != set()]
    drawn, faults = draw_figures(wanted, jobs, tables, folder)
    named = [(run.label, run.folder) for run in runs]
    write_whole(Page(folder.name, (), command(), tables, drawn, rows=rows, failed=nothing_left), folder, root, named)
    settings = Wandb.model_validate(OmegaConf.to_container(config.logger.wandb, resolve=True))
    log_results(settings, root, folder, tables, drawn, rows)
    if tables:
        print(f"\n{folder}", flush=True)
    return faults


def _choose(runs: list[SweptRun], rows_of: list[list[Row]], layout: TableConfig) -> Chosen:
    """Return the rows of each run that ``table.choose`` keeps; all rows if this key is null."""
    choose = layout.choose
    if not choose:
        return Chosen(rows_of, [], set())
    candidates = []
    for run, rows in zip(runs, rows_of, strict=True):
        config = OmegaConf.load(run.folder / "config.yaml")
        value = OmegaConf.select(config, choose.key, throw_on_resolution_failure=False)
        candidates.append(Candidate(run.group, as_typed(value), rows))
    return chosen_rows(candidates, choose, choose.by or layout.metrics[0])


def with_settings(rows: list[Row], job_rows: list[tuple[list[str], Row]]) -> list[Row]:
    """Return the rows of a sweep, each with the swept stage settings of the jobs that made it.

    Command-line settings for all jobs, such as the folder of the data, describe the machine and are left out.

    Args:
        rows: rows of the sweep.
        job_rows: (overrides of a job, row) for each row of each job.
    """
    swept = set(os.environ.get(SWEPT, "").split())
    rows_with_settings = []
    for row in rows:
        settings: dict[str, list[str]] = {}
        of_row = [given for given, one in job_rows if (one.name, one.artifact) == (row.system, row.artifact)]
        for override in (one for given in of_row for one in given if one.partition("=")[0] in swept):
            for key, value in settings_of(override).items():
                if key.startswith(("stage.", "stages.")) and value not in settings.setdefault(key, []):
                    settings[key].append(value)
        rows_with_settings.append(replace(row, settings=settings))
    return rows_with_settings


def settings_of(override: str) -> dict[str, str]:
    """Return the keys and values of a command-line override; a mapping gives one entry per full key."""
    key, _, value = override.partition("=")
    if not value.startswith("{"):
        return {key: value}
    return dict(_entries(key, OverridesParser.create().parse_override(override).value()))


def _entries(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _entries(f"{key}.{name}", one)
    else:
        yield key, as_typed(value)


def of_systems(jobs: list[list[str]]) -> list[list[str]]:
    """Return the overrides of each job. Choices of the split or the candidates are left out, as each row shows them."""
    parsed = [[(override, settings_of(override)) for override in job] for job in jobs]
    pools = {settings.get(CANDIDATES, "null") for job in parsed for _, settings in job}
    measured_on = MEASURED_ON if len(pools - {"null"}) < 2 else MEASURED_ON - {CANDIDATES}
    return [[override for override, settings in job if not settings.keys() <= measured_on] for job in parsed]


def distinct_rows(job_rows: list[tuple[str, Row]]) -> list[Row]:
    """Return the rows of all jobs, each artifact once. A row that differs between jobs gets its job's label as a prefix.

    A row that all jobs of a seed share, such as BM25, keeps its own name. A row that jobs measured on different collections
    or splits keeps its name too, because each collection and split has its own column.

    Args:
        job_rows: (label of a job, row) for each row of each job.
    """
    artifacts_of: dict[tuple[Any, ...], set[str]] = {}  # (row, seed, collection, split) -> its artifacts
    for _, row in job_rows:
        artifacts_of.setdefault((row.name, row.seed, row.collection, row.split), set()).add(row.artifact)
    single = len({without_seed(label) for label, _ in job_rows}) == 1  # the label, if any, says which job succeeded
    swept = {name for (name, *_), artifacts in artifacts_of.items() if single or len(artifacts) > 1}
    rows: dict[tuple[str, str], Row] = {}
    for label, row in job_rows:
        labelled = row.name in swept or (row.failed and not row.collection)  # its column is unknown
        name = " · ".join(part for part in (without_seed(label) if labelled else "", row.name) if part)
        rows.setdefault((name, row.artifact), replace(row, name=name, system=row.name))
    return list(rows.values())


def labels_of(jobs: list[list[str]], without: str = "") -> list[str]:
    """Return a label for each job: the overrides that not all jobs share, without the leading part of their keys.

    Each override becomes one word, also a mapping: ``stage.finetune={steps:9,epochs:null}`` is ``steps=9,epochs=null``. The
    key ``without`` is left out.
    """
    common = set.intersection(*(set(job) for job in jobs)) if jobs else set()
    labels = [[_word(override, without) for override in job if override not in common] for job in jobs]
    return [" ".join(filter(None, label)) for label in labels]


def _word(override: str, without: str) -> str:
    if "={" not in override:
        return "" if override.partition("=")[0] == without else re.sub(r"^[^=]*\.(?=[^.=]*=)", "", override)
    settings = {key: value for key, value in settings_of(override).items() if key != without}
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())


def without_seed(label: str) -> str:
    """Return a job's label without the seed, which the table shows separately."""
    return " ".join(part for part in label.split(" ") if not re.fullmatch(r"seed=\d+", part))
