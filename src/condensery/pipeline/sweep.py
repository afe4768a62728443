"""Sweeps (``-m``): each job leaves a record, one table joins them at the end, and a failed job hides no other's result.

This module is imported by Hydra at every start, so it imports nothing heavy at its head.
"""

import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from condensery.reporting.results import Row

FOLDER = "CONDENSERY_SWEEP"  # environment variable: where the jobs of this sweep leave their records
failed: list[str] = []  # of the last sweep in this process: the labels of the jobs that failed


def run_job(cfg: DictConfig) -> None:
    """Run one job of a sweep and record its results, or its error, which is printed at once."""
    from condensery.cli import in_one_line
    from condensery.files import write_json
    from condensery.pipeline.run import run

    hydra = HydraConfig.get()
    overrides = [override.lstrip("+") for override in hydra.overrides.task]
    record: dict[str, Any] = {"number": int(hydra.job.num), "overrides": overrides, "folder": None, "error": None}
    print(f"\n== job {record['number']}: {' '.join(overrides)}", flush=True)
    try:
        finished = run(cfg)
        record["folder"] = str(finished.folder) if finished.folder else None
    except Exception as error:
        line = in_one_line(error)
        record["error"] = line or f"error: {type(error).__name__}: {error}"
        print(line or traceback.format_exc(), file=sys.stderr, flush=True)
    write_json(Path(os.environ[FOLDER]) / "jobs" / f"{record['number']:04d}.json", record)


class JoinedTable(Callback):
    """Hydra's callback: clears the records of an earlier sweep, and joins those of this one into a table at its end."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Say where the records go; through the environment, so that a launcher's processes know it too."""
        folder = Path(config.hydra.sweep.dir).expanduser().absolute()
        os.environ[FOLDER] = str(folder)
        shutil.rmtree(folder / "jobs", ignore_errors=True)
        failed.clear()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write ``results.json`` and the table over all jobs, and print it."""
        from condensery.files import read_json

        folder = Path(os.environ[FOLDER])
        records = [read_json(path) for path in sorted((folder / "jobs").glob("*.json"))]
        labels = labels_of([record["overrides"] for record in records])
        _join(
            folder,
            [
                (label, record["overrides"], Path(record["folder"]))
                for label, record in zip(labels, records, strict=True)
                if record["folder"]
            ],
        )
        failed.extend(label or "all" for label, record in zip(labels, records, strict=True) if record["error"])
        if failed:
            print(
                f"error: {len(failed)} of {len(records)} jobs failed: {'; '.join(failed)}", file=sys.stderr, flush=True
            )


def _join(folder: Path, runs: list[tuple[str, list[str], Path]]) -> None:
    """One table over the run folders; lines that differ in nothing but the seed become one, with their spread."""
    from condensery.pipeline.config import TableConfig
    from condensery.pipeline.report import joined, with_queries
    from condensery.reporting.results import read_results

    found = [
        (label, overrides, with_queries(row, run.parents[1] / "artifacts" / row.artifact))
        for label, overrides, run in runs
        for row in read_results(run / "results.json")
    ]
    if found:
        config = OmegaConf.load(runs[0][-1] / "config.yaml")
        table = TableConfig.model_validate(OmegaConf.to_container(config.table, resolve=True))
        rows = with_settings(distinct_rows([(label, row) for label, _, row in found]), [one[1:] for one in found])
        joined(rows, folder, folder.name, table)
        print(f"\n{folder}", flush=True)


def with_settings(rows: "list[Row]", found: "list[tuple[list[str], Row]]") -> "list[Row]":
    """The rows of a sweep, each with the settings of stages in the jobs that made it; from (overrides of a job, row)."""
    from dataclasses import replace

    told = []
    for row in rows:
        settings: dict[str, list[str]] = {}
        for overrides in (given for given, one in found if (one.name, one.artifact) == (row.system, row.artifact)):
            for key, _, value in (override.partition("=") for override in overrides):
                if key.startswith(("stage.", "stages.")) and value not in settings.setdefault(key, []):
                    settings[key].append(value)
        told.append(replace(row, settings=settings))
    return told


def distinct_rows(found: "list[tuple[str, Row]]") -> "list[Row]":
    """The rows of (label of the job, row), each artifact once, named after its job where the sweep made a difference.

    A row that the jobs of a seed have in common, such as BM25's, keeps its own name, and so does one that they measured on
    different collections or splits: those have columns of their own.
    """
    from dataclasses import replace

    made: dict[tuple[Any, ...], set[str]] = {}  # (row, seed, collection, split) -> its artifacts
    for _, row in found:
        made.setdefault((row.name, row.seed, row.collection, row.split), set()).add(row.artifact)
    single = len({without_seed(label) for label, _ in found}) == 1  # its label, if any, tells what did not fail
    swept = {name for (name, *_), artifacts in made.items() if single or len(artifacts) > 1}
    rows: dict[tuple[str, str], Row] = {}
    for label, row in found:
        name = " · ".join(part for part in (without_seed(label) if row.name in swept else "", row.name) if part)
        rows.setdefault((name, row.artifact), replace(row, name=name, system=row.name))
    return list(rows.values())


def labels_of(jobs: list[list[str]]) -> list[str]:
    """What tells the jobs apart: of each the overrides that not all share, without the leading part of their keys."""
    common = set.intersection(*(set(job) for job in jobs)) if jobs else set()
    return [" ".join(re.sub(r"^[^=]*\.(?=[^.=]*=)", "", o) for o in job if o not in common) for job in jobs]


def without_seed(label: str) -> str:
    """A job's label without the seed, which the table has its own way to show."""
    return " ".join(part for part in label.split(" ") if not re.fullmatch(r"seed=\d+", part))
