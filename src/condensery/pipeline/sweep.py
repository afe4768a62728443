"""Sweeps (``-m``): each job writes a record, and Hydra's callback combines the records at the end.

Hydra imports this module at every start, so it imports no large library at its head.
"""

import atexit
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from condensery.errors import UserError, shown
from condensery.pipeline.error_lines import Stopped
from condensery.pipeline.reports.study import SWEPT, swept_keys
from condensery.system.files import expanded, read_json

RECORDS = "CONDENSERY_SWEEP"  # environment variable: folder of the records of this sweep's jobs, in the sweep's folder
failed: list[str] = []  # labels of the failed jobs of the last sweep in this process


class JoinedTable(Callback):
    """Hydra's callback: collects the records of this sweep's jobs, and writes one table of all jobs at the end."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Set the folder of the records in the environment, so that a launcher's processes know it too."""
        from condensery.pipeline.config import STUDY  # a slow import: pydantic and all keys of the root

        try:
            name, _ = config.name, config.output_root
        except OmegaConfBaseException as error:  # Hydra would warn, and go on
            raise Stopped from error
        if not re.fullmatch(STUDY, str(name)):  # before anything in a folder of that name is touched
            raise Stopped from UserError(f"name: must match {STUDY}, got {shown(repr(name))}")
        # another sweep or dry run of the same name may be running, so each has records of its own
        os.environ[RECORDS] = str(expanded(config.hydra.sweep.dir).absolute() / f"jobs-{os.urandom(8).hex()}")
        atexit.register(shutil.rmtree, os.environ[RECORDS], ignore_errors=True)  # for a sweep that is interrupted
        task: Any = OmegaConf.to_container(config.hydra.overrides.task)  # unresolved
        keys = [*(OmegaConf.select(config, "hydra.sweeper.params") or {}), *swept_keys(task)]
        os.environ[SWEPT] = " ".join(str(key).lstrip("+") for key in keys)
        failed.clear()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write ``results.json``, the table, the figures and the page over all jobs, and print the table."""
        folder = Path(os.environ[RECORDS]).parent
        records = [read_json(path) for path in sorted(Path(os.environ[RECORDS]).glob("*.json"))]
        shutil.rmtree(os.environ[RECORDS], ignore_errors=True)
        if not records:
            raise Stopped from UserError(f"{os.environ[SWEPT]}: a sweep over no values has no job; give values")
        if planned := [record["costs"] for record in records if record.get("costs") is not None]:
            from condensery.pipeline.dry_run.costs import project_sweep

            project_sweep(planned)
        if not any(record["folder"] or record["error"] for record in records):  # a dry run writes nothing
            with suppress(OSError):  # fails if the folder has files of an earlier sweep or of other recipes
                if [path.name for path in folder.iterdir()] == ["multirun.yaml"]:  # Hydra's own file
                    (folder / "multirun.yaml").unlink()
                folder.rmdir()
                folder.parent.rmdir()
            return
        from condensery.pipeline.reports.sweep_report import report_of_sweep  # a slow import: tables and figures

        failed.extend(report_of_sweep(folder, records, config))
