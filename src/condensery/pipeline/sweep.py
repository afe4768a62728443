"""Sweeps (``-m``): each job leaves a record, one table joins them at the end, and a failed job hides no other's result.

This module is imported by Hydra at every start, so it imports nothing heavy at its head.
"""

import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

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
        """Write ``results.json`` and ``table.md`` over all jobs, and print them."""
        from condensery.files import read_json

        folder = Path(os.environ[FOLDER])
        records = [read_json(path) for path in sorted((folder / "jobs").glob("*.json"))]
        labels = labels_of([record["overrides"] for record in records])
        _join(
            folder,
            [
                (label, Path(record["folder"]))
                for label, record in zip(labels, records, strict=True)
                if record["folder"]
            ],
        )
        failed.extend(label or "all" for label, record in zip(labels, records, strict=True) if record["error"])
        if failed:
            print(
                f"error: {len(failed)} of {len(records)} jobs failed: {'; '.join(failed)}", file=sys.stderr, flush=True
            )


def _join(folder: Path, runs: list[tuple[str, Path]]) -> None:
    """One table over the run folders; lines that differ in nothing but the seed become one, with their spread."""
    from dataclasses import replace

    from condensery.pipeline.report import joined
    from condensery.reporting.results import read_results

    rows = [
        replace(row, name=" · ".join(part for part in (without_seed(label), row.name) if part))
        for label, run in runs
        for row in read_results(run / "results.json")
    ]
    if rows:
        joined(rows, folder, folder.name)
        print(f"\n{folder}", flush=True)


def labels_of(jobs: list[list[str]]) -> list[str]:
    """What tells the jobs apart: of each the overrides that not all share, without the leading part of their keys."""
    common = set.intersection(*(set(job) for job in jobs)) if jobs else set()
    return [" ".join(re.sub(r"^[^=]*\.(?=[^.=]*=)", "", o) for o in job if o not in common) for job in jobs]


def without_seed(label: str) -> str:
    """A job's label without the seed, which the table has its own way to show."""
    return " ".join(part for part in label.split(" ") if not re.fullmatch(r"seed=\d+", part))
