"""The table, the figures and the page of a sweep: a failed job hides no other's result."""

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
from condensery.pipeline.config import TableConfig, WandbConfig
from condensery.pipeline.reports.figures import FigureJob, draw_figures, read_figures
from condensery.pipeline.reports.page import page_of_sweep
from condensery.pipeline.reports.report import joined, remove_tables, track, with_values
from condensery.pipeline.reports.study import SWEPT, command
from condensery.reporting.drawing import Figure
from condensery.reporting.results import Row, read_results
from condensery.reporting.table import Table

CANDIDATES = "stage.evaluate.candidates"
MEASURED_ON = frozenset({"table.split", "stage.evaluate.split", CANDIDATES, f"{CANDIDATES}_number"})


def report_of_sweep(folder: Path, records: Sequence[Mapping[str, Any]], config: DictConfig) -> list[str]:
    """Write ``results.json``, the table, the figures and the page over all jobs into ``folder``, and print the table.

    ``records``: what each job left, in their order. Returns the labels of the jobs that failed, and why figures could not be
    drawn.
    """
    labels = labels_of([record["overrides"] for record in records])
    settings = labels_of(of_systems([record["overrides"] for record in records]))
    jobs = list(zip(labels, records, strict=True))
    runs = [
        SweptRun(label, without_seed(setting), record["overrides"], Path(record["folder"]))
        for (label, record), setting in zip(jobs, settings, strict=True)
        if record["folder"]
    ]
    nothing_left = [(label, _last_line(record["error"])) for label, record in jobs if not record["folder"]]
    faults = _join(folder, runs, nothing_left, config) if runs else []
    failed: list[str] = []
    reasons: dict[str, list[str]] = {}
    for label, record in jobs:
        if record["error"]:
            failed.append(label or "all")
            reasons.setdefault(_last_line(record["error"]), []).append(label or "all")
    if failed:
        text = "; ".join(f"{', '.join(those)} ({shown(reason, 200)})" for reason, those in reasons.items())
        print(f"error: {len(failed)} of {len(records)} jobs failed: {text}", file=sys.stderr, flush=True)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr, flush=True)
    return [*failed, *faults]


class SweptRun(NamedTuple):
    """A job of a sweep that left a run: what tells it from the others, and its systems from theirs; what it was given."""

    label: str
    setting: str
    overrides: list[str]
    folder: Path


def _last_line(error: str | None) -> str:
    """What went wrong, of an error that may be a traceback with a note on the stage behind it."""
    lines = [line for line in (error or "").splitlines() if line.strip() and not line.startswith("(in the stage ")]
    return lines[-1].removeprefix("error: ") if lines else "no message"


def _join(folder: Path, runs: list[SweptRun], nothing_left: list[tuple[str, str]], config: DictConfig) -> list[str]:
    """One table over the run folders; lines that differ in nothing but the seed become one, with their spread.

    Draws the figures as well, and writes the page; returns why figures could not be drawn.
    """
    root = runs[0].folder.parents[1]
    run_rows = [(run, row) for run in runs for row in with_values(read_results(run.folder / "results.json"), root)]
    rows = distinct_rows([(run.setting, row) for run, row in run_rows])
    rows = with_settings(rows, [(run.overrides, row) for run, row in run_rows])
    tables = []
    if any(not row.failed for row in rows):
        composed = OmegaConf.load(runs[0].folder / "config.yaml")
        layout = TableConfig.model_validate(OmegaConf.to_container(composed.table, resolve=True))
        tables.append(joined(rows, folder, folder.name, layout, root))
    else:
        remove_tables(folder)
    drawn, faults = _draw(folder, runs, tables, config)
    named = [(run.label, run.folder) for run in runs]
    page_of_sweep(folder, root, command(), tables, drawn, rows, named, nothing_left)
    settings = WandbConfig.model_validate(OmegaConf.to_container(config.logger.wandb, resolve=True)).settings()
    track(settings, root, folder, tables, drawn, rows)
    if tables:
        print(f"\n{folder}", flush=True)
    return faults


def _draw(
    folder: Path, runs: list[SweptRun], tables: Sequence[Table], config: DictConfig
) -> tuple[list[Figure], list[str]]:
    """Draw the figures over the run folders: those drawn, and of each that cannot be drawn, why."""
    figures = OmegaConf.select(config, "figures")
    if not figures or not runs:
        return [], []
    jobs = [FigureJob(run.folder, run.setting) for run in runs]
    return draw_figures(read_figures(OmegaConf.to_container(figures, resolve=True)), jobs, tables, folder)


def with_settings(rows: list[Row], job_rows: list[tuple[list[str], Row]]) -> list[Row]:
    """The rows of a sweep, each with the swept settings of stages in the jobs that made it; from (overrides, row).

    What the command line sets for all jobs, such as where the data lies, is of the machine and not of the study.
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
    """Key -> value of an override as the command line has it; each entry of a mapping by itself, with its whole key."""
    key, _, value = override.partition("=")
    if not value.startswith("{"):
        return {key: value}
    return dict(_entries(key, OverridesParser.create().parse_override(override).value()))


def _entries(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _entries(f"{key}.{name}", one)
    else:
        yield key, "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def of_systems(jobs: list[list[str]]) -> list[list[str]]:
    """The overrides of the jobs without those that only say on what is measured, which rows tell by their split."""
    parsed = [[(override, settings_of(override)) for override in job] for job in jobs]
    pools = {settings.get(CANDIDATES, "null") for job in parsed for _, settings in job}
    measured_on = MEASURED_ON if len(pools - {"null"}) < 2 else MEASURED_ON - {CANDIDATES}
    return [[override for override, settings in job if not settings.keys() <= measured_on] for job in parsed]


def distinct_rows(job_rows: list[tuple[str, Row]]) -> list[Row]:
    """The rows of (label of the job, row), each artifact once, named after its job where the sweep made a difference.

    A row that the jobs of a seed have in common, such as BM25's, keeps its own name, and so does one that they measured on
    different collections or splits: those have columns of their own.
    """
    artifacts_of: dict[tuple[Any, ...], set[str]] = {}  # (row, seed, collection, split) -> its artifacts
    for _, row in job_rows:
        artifacts_of.setdefault((row.name, row.seed, row.collection, row.split), set()).add(row.artifact)
    single = len({without_seed(label) for label, _ in job_rows}) == 1  # its label, if any, tells what did not fail
    swept = {name for (name, *_), artifacts in artifacts_of.items() if single or len(artifacts) > 1}
    rows: dict[tuple[str, str], Row] = {}
    for label, row in job_rows:
        labelled = row.name in swept or (row.failed and not row.collection)  # it is not known which column lacks it
        name = " · ".join(part for part in (without_seed(label) if labelled else "", row.name) if part)
        rows.setdefault((name, row.artifact), replace(row, name=name, system=row.name))
    return list(rows.values())


def labels_of(jobs: list[list[str]]) -> list[str]:
    """What tells the jobs apart: of each the overrides that not all share, without the leading part of their keys.

    An override is one word, a mapping too: ``stage.finetune={steps:9,epochs:null}`` is ``steps=9,epochs=null``.
    """
    common = set.intersection(*(set(job) for job in jobs)) if jobs else set()
    return [" ".join(_word(override) for override in job if override not in common) for job in jobs]


def _word(override: str) -> str:
    if "={" not in override:
        return re.sub(r"^[^=]*\.(?=[^.=]*=)", "", override)
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings_of(override).items())


def without_seed(label: str) -> str:
    """A job's label without the seed, which the table has its own way to show."""
    return " ".join(part for part in label.split(" ") if not re.fullmatch(r"seed=\d+", part))
