"""Weights & Biases: a run for each training stage and one for the results of a study, all of them in the study's group.

Imports nothing heavy at its head, and Lightning not at all: results are logged without it.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from condensery.errors import UserError

STEP = "trainer/global_step"  # what Lightning calls the optimisation step


@dataclass(frozen=True)
class Tracked:
    """Where a run goes and what it is called.

    Attributes:
        enabled: auto goes on without W&B where it does not answer; True insists.
        group: the study.
        name: tells it from the others of the study.
        job_type: the kind of stage.
        run_id: the same for the same work, so that it is resumed.
        config: what W&B shows beside it.
        folder: offline runs are written to ``folder``/wandb.
    """

    enabled: bool | Literal["auto"]
    project: str
    entity: str | None
    group: str
    name: str
    job_type: str
    run_id: str
    config: Mapping[str, Any]
    folder: Path


def start(tracked: Tracked, earlier: Sequence[Mapping[str, float]] | None = None) -> Any | None:
    """Begin a W&B run and return it; None where W&B is switched off or cannot be had.

    Without an API key, or with ``WANDB_MODE=offline``, the run is written to disk and can be sent later with
    ``wandb sync``. Online a run that was interrupted goes on. Offline W&B begins a new folder each time, and of two
    folders with one id that are sent the later replaces the earlier; so the new one is given the rows ``earlier`` (with
    a column ``step``; None for a run without curves), which makes it whole, and takes the place of the old.
    """
    if tracked.enabled is False or os.environ.get("WANDB_MODE") == "disabled":
        return None
    import wandb

    folder = tracked.folder
    offline = os.environ.get("WANDB_MODE") == "offline" or not (os.environ.get("WANDB_API_KEY") or _key_at_hand())
    if offline:
        print(
            f"[{tracked.name}] W&B: no key, offline under {folder / 'wandb'} (send later with `wandb sync`)", flush=True
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run = wandb.init(
            mode="offline" if offline else "online",
            project=tracked.project,
            entity=tracked.entity,
            group=tracked.group,
            name=tracked.name,
            job_type=tracked.job_type,
            id=tracked.run_id,
            config=dict(tracked.config),
            dir=folder,
            resume=None if offline else "allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
    except wandb.Error as error:
        text = f"logger.wandb: {' '.join(str(error).split())}"
        if tracked.enabled is True:
            raise UserError(text) from None
        print(f"[{tracked.name}] {text}; goes on with the CSV alone", flush=True)
        return None
    if earlier is not None:
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
    if offline:
        for row in earlier or ():
            run.log({(STEP if name == "step" else name): value for name, value in row.items()})
        for path in (folder / "wandb").glob(f"offline-run-*-{tracked.run_id}"):
            if path != Path(run.dir).parent:
                shutil.rmtree(path)
    return run


def logged(tracked: Tracked) -> bool:
    """Whether a run of this id was begun here before."""
    return any((tracked.folder / "wandb").glob(f"*run-*-{tracked.run_id}"))


def close(failed: bool = False) -> None:
    """End the W&B run of this process, if there is one, so that the next stage gets its own."""
    import sys

    if "wandb" in sys.modules:
        sys.modules["wandb"].finish(1 if failed else 0)


def _key_at_hand() -> bool:
    """Whether ``wandb login`` has stored a key for the default host."""
    import netrc

    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in hosts for host in ("api.wandb.ai", os.environ.get("WANDB_BASE_URL", "").split("//")[-1]))
