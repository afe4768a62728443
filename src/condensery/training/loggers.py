"""Logs training curves: always to a CSV file, and to W&B, TensorBoard and Trackio if they are enabled."""

import csv
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from condensery.system.files import atomic
from condensery.training.trackio_logger import TrackioLogger
from condensery.training.wandb_run import Tracked, close, start

LOGS, CURVES = "logs", "metrics.csv"
_PART = "from-step-"


def csv_logger(folder: Path, first_step: int) -> CSVLogger:
    """Return a CSV logger for the part of a run that begins at ``first_step``. ``merge_parts`` later joins the parts."""
    for path in (folder / LOGS).glob(f"{_PART}*"):
        if _first_step(path) >= first_step:  # from a run that was killed before it wrote its next checkpoint
            shutil.rmtree(path)
    return CSVLogger(save_dir=folder, name=LOGS, version=f"{_PART}{first_step:09d}")


def merge_parts(folder: Path) -> Path:
    """Write ``logs/metrics.csv`` from the parts of a run, with one row per step: the later row if a step was run twice.

    If ``metrics.csv`` exists already, the run was killed after an earlier merge. The file then counts as the first part.
    """
    merged, parts = folder / LOGS / CURVES, _parts(folder)
    rows = _merged(folder)
    columns = sorted({name for row in rows for name in row})
    with atomic(merged) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)
    for path in parts:
        shutil.rmtree(path)
    return merged


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / LOGS).glob(f"{_PART}*"))


def _merged(folder: Path, last: float = math.inf) -> list[dict[str, str]]:
    """Return one row for each step before ``last``. A part's rows are used only before the first step of the next part."""
    parts = _parts(folder)
    files = [folder / LOGS / CURVES, *(path / CURVES for path in parts)]
    ends: list[float] = [*map(_first_step, parts), math.inf]
    by_step: dict[int, dict[str, str]] = {}
    for path, end in zip(files, ends, strict=True):
        for row in _whole_rows(path):
            if int(row["step"]) < min(end, last):
                by_step.setdefault(int(row["step"]), {}).update({name: value for name, value in row.items() if value})
    return [by_step[step] for step in sorted(by_step)]


def last_values(curves: Path) -> dict[str, float]:
    """Return the last value of each column of a ``metrics.csv``, without the step."""
    values = {name: value for row in _whole_rows(curves) for name, value in row.items() if value}
    return {name: float(value) for name, value in values.items() if name != "step"}


def _first_step(part: Path) -> int:
    return int(part.name.removeprefix(_PART))


def _whole_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without an unfinished last line. The list is empty if there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


@contextmanager
def wandb_logger(tracked: Tracked, folder: Path, first_step: int) -> Iterator[list[Logger]]:
    """Context manager. Yields a list with the W&B logger of a training stage; the list is empty if W&B is disabled.

    A resumed stage continues its run. On exit the run is closed. If an exception was raised, the run is closed as failed.

    Args:
        tracked: the destination and the names of the run.
        folder: folder of the stage, with its logs.
        first_step: the step at which this part of the run begins.
    """
    run = start(tracked, [{name: float(value) for name, value in row.items()} for row in _merged(folder, first_step)])
    done = False
    try:
        yield [WandbLogger(experiment=run)] if run else []
        done = True
    finally:
        close(failed=not done)


def other_loggers(
    tracked: Tracked, folder: Path, first_step: int, tensorboard: bool, trackio: str | None
) -> list[Logger]:
    """Return the loggers besides the W&B and CSV loggers.

    Args:
        tracked: the names of the run.
        folder: folder of the stage, with its logs.
        first_step: the step at which this part of the run begins. Earlier TensorBoard logs from this step on are dropped.
        tensorboard: whether TensorBoard files are written.
        trackio: name of the Trackio project; None = no Trackio.
    """
    loggers: list[Logger] = []
    if tensorboard:
        loggers.append(TensorBoardLogger(folder / LOGS, name="", version="tensorboard", purge_step=first_step))
    if trackio:
        loggers.append(TrackioLogger(trackio, tracked))
    return loggers
