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
    version = f"{_PART}{first_step:09d}"
    shutil.rmtree(folder / LOGS / version, ignore_errors=True)  # of a part that was killed before its first checkpoint
    return CSVLogger(save_dir=folder, name=LOGS, version=version, flush_logs_every_n_steps=20)


def merge_parts(folder: Path) -> Path:
    """Write ``logs/metrics.csv``: the parts one after the other, without the steps that a later part did again."""
    parts = sorted((folder / LOGS).glob(f"{_PART}*/metrics.csv"))
    first_steps = [int(path.parent.name.removeprefix(_PART)) for path in parts]
    rows: list[dict[str, str]] = []
    for path, end in zip(parts, [*first_steps[1:], float("inf")], strict=True):
        with open(path, newline="", encoding="utf-8") as stream:
            rows += [row for row in csv.DictReader(stream) if int(row["step"]) < end]
    columns = dict.fromkeys(name for row in rows for name in row)
    merged = folder / LOGS / CURVES
    with atomic(merged) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)
    for path in parts:
        shutil.rmtree(path.parent)
    return merged


def wandb_logger(
    enabled: bool | Literal["auto"], project: str, entity: str | None, group: str, name: str, run_id: str, folder: Path
) -> list[Logger]:
    """The W&B logger of one training stage, or none where it is switched off.

    One run a stage, all stages of a pipeline in one group. Without an API key, or with ``WANDB_MODE=offline``, the run is
    written to ``folder``/wandb and can be sent later with ``wandb sync``. A resumed stage goes on in its run.
    """
    if enabled is False or os.environ.get("WANDB_MODE") == "disabled":
        return []
    os.environ.setdefault("WANDB_SILENT", "true")  # before the import: its notices would break the progress lines
    import wandb

    offline = os.environ.get("WANDB_MODE") == "offline" or not (os.environ.get("WANDB_API_KEY") or _key_at_hand())
    if offline:
        print(f"[{name}] W&B: no key, offline under {folder / 'wandb'} (send later with `wandb sync`)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
    logger = WandbLogger(
        name=name,
        save_dir=str(folder),
        id=run_id,
        offline=offline,
        project=project,
        entity=entity,
        group=group,
        resume="allow",
        settings=settings,
    )
    return [logger]


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
