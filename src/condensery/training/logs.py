"""Where curves go: always a CSV, and Weights & Biases, online with a key and offline without."""

import csv
import os
import shutil
from pathlib import Path
from typing import Literal

from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger

from condensery.files import atomic

LOGS, CURVES = "logs", "metrics.csv"
_PART = "from-step-"


def csv_logger(folder: Path, first_step: int) -> CSVLogger:
    """A CSV for this part of a run, which begins at ``first_step``; ``merge_parts`` makes one file of the parts."""
    for path in (folder / LOGS).glob(f"{_PART}*"):
        if _first_step(path) >= first_step:  # of a part that was killed before its first checkpoint
            shutil.rmtree(path)
    return CSVLogger(save_dir=folder, name=LOGS, version=f"{_PART}{first_step:09d}")


def merge_parts(folder: Path) -> Path:
    """Write ``logs/metrics.csv``: the parts in order, one row a step; of a step that was done twice, the later.

    A ``metrics.csv`` that is there already is the first part: the run was killed after it had merged its parts.
    """
    merged = folder / LOGS / CURVES
    parts = sorted((folder / LOGS).glob(f"{_PART}*"))
    if merged.exists() and not parts:
        return merged
    files = [merged, *(path / CURVES for path in parts)]
    ends: list[float] = [*map(_first_step, parts), float("inf")]
    by_step: dict[int, dict[str, str]] = {}
    for path, end in zip(files, ends, strict=True):
        for row in _whole_rows(path):
            if int(row["step"]) < end:
                by_step.setdefault(int(row["step"]), {}).update({name: value for name, value in row.items() if value})
    rows = [by_step[step] for step in sorted(by_step)]
    columns = sorted({name for row in rows for name in row})
    with atomic(merged) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)
    for path in parts:
        shutil.rmtree(path)
    return merged


def last_values(curves: Path) -> dict[str, float]:
    """The last value of each column of a ``metrics.csv`` but for the step."""
    values = {name: value for row in _whole_rows(curves) for name, value in row.items() if value}
    return {name: float(value) for name, value in values.items() if name != "step"}


def _first_step(part: Path) -> int:
    return int(part.name.removeprefix(_PART))


def _whole_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV, none where there is no file; a line that a killed process did not finish is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def wandb_logger(
    enabled: bool | Literal["auto"], project: str, entity: str | None, group: str, name: str, run_id: str, folder: Path
) -> list[Logger]:
    """The W&B logger of one training stage, or none where it is switched off.

    One run a stage, all stages of a pipeline in one group. Without an API key, or with ``WANDB_MODE=offline``, the run
    is written to ``folder``/wandb and can be sent later with ``wandb sync``. A resumed stage goes on in its run.
    """
    if enabled is False or os.environ.get("WANDB_MODE") == "disabled":
        return []
    import wandb

    offline = os.environ.get("WANDB_MODE") == "offline" or not (os.environ.get("WANDB_API_KEY") or _key_at_hand())
    if offline:
        print(f"[{name}] W&B: no key, offline under {folder / 'wandb'} (send later with `wandb sync`)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        mode="offline" if offline else "online",
        project=project,
        entity=entity,
        group=group,
        name=name,
        id=run_id,
        dir=folder,
        resume="allow",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
    )
    return [WandbLogger(experiment=run)]


def _key_at_hand() -> bool:
    """Whether ``wandb login`` has stored a key for the default host."""
    import netrc

    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in hosts for host in ("api.wandb.ai", os.environ.get("WANDB_BASE_URL", "").split("//")[-1]))


def close_wandb() -> None:
    """End the W&B run of this process, if there is one, so that the next stage gets its own."""
    import sys

    if "wandb" in sys.modules:
        sys.modules["wandb"].finish()
