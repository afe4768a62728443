"""Logs to Weights & Biases (W&B): one run per training stage and one run for the results, in the group of the study.

Importing this module loads no large package. The module never imports Lightning, because the results of a study are logged
without Lightning.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from condensery.errors import UserError

STEP = "trainer/global_step"  # Lightning's name for the optimisation step
said_offline: set[tuple[Path, str]] = set()  # folders and groups for which the line about offline logging was printed


@dataclass(frozen=True)
class Tracked:
    """The destination and the names of a W&B run.

    Attributes:
        enabled: False = no run is logged. True = an error is raised if W&B does not respond. auto = training then continues
            without W&B.
        project: name of the W&B project.
        entity: user or team at W&B; None = W&B's default.
        group: name of the study.
        name: name of the run, unique within the study.
        job_type: kind of the stage.
        run_id: id of the run; the same work has the same id, so that the run is resumed.
        config: settings that W&B shows with the run.
        folder: folder of the stage; offline runs are written to ``folder``/wandb.
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
    """Begin a W&B run and return it; None if W&B is disabled or does not respond.

    Without an API key, or with ``WANDB_MODE=offline`` or ``dryrun``, the run is written to disk and can be uploaded later
    with ``wandb sync``. An interrupted online run is resumed. Offline, W&B creates a new folder each time. If two folders
    with the same id are uploaded, the later one replaces the earlier one. So the rows in the argument ``earlier`` are first
    written into the new offline run, and the old folder is deleted.

    Args:
        tracked: the destination and the names of the run.
        earlier: rows of the run that were logged before, with a column ``step``; None = a run without curves.

    Raises:
        UserError: W&B does not respond or refuses its environment variables, and ``enabled`` is True.
    """
    if tracked.enabled is False or os.environ.get("WANDB_MODE") == "disabled":
        return None
    import wandb

    named = any(os.environ.get(f"WANDB_{name}") for name in ("API_KEY", "IDENTITY_TOKEN_FILE"))
    no_key = not (named or _key_at_hand())
    offline = no_key or os.environ.get("WANDB_MODE") in ("offline", "dryrun")  # two names of one mode
    if offline and (tracked.folder, tracked.group) not in said_offline:
        said_offline.add((tracked.folder, tracked.group))
        why = "no API key; " * no_key
        print(f"[{tracked.name}] W&B: {why}logs are in {tracked.folder}/wandb; `wandb sync` uploads them", flush=True)
    tracked.folder.mkdir(parents=True, exist_ok=True)
    try:
        run = wandb.init(
            mode="offline" if offline else "online",
            project=tracked.project,
            entity=tracked.entity,
            group=_accepted(tracked.group),
            name=_accepted(tracked.name),
            job_type=_accepted(tracked.job_type, 64),
            id=tracked.run_id,
            config=dict(tracked.config),
            dir=tracked.folder,
            resume=None if offline else "allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
    except (wandb.Error, ValueError) as error:  # a ValueError: an environment variable such as WANDB_MODE is wrong
        text = f"logger.wandb: {' '.join(str(error).split())}"
        if tracked.enabled is True:
            raise UserError(text) from None
        print(f"[{tracked.name}] {text}; curves go only into the CSV file", flush=True)
        return None
    if earlier is not None:
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
    if offline:
        for row in earlier or ():
            run.log({(STEP if name == "step" else name): value for name, value in row.items()})
        for path in (tracked.folder / "wandb").glob(f"offline-run-*-{tracked.run_id}"):
            if path != Path(run.dir).parent:
                shutil.rmtree(path)
    return run


def _accepted(name: str, most: int = 128) -> str:
    """Shorten a name to the length that W&B accepts. Otherwise an offline run could not be uploaded.

    A shortened name ends with a hash of the whole name, so that different names stay different.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return name if len(name) <= most else f"{name[: most - len(digest) - 1]} {digest}"


def logged(tracked: Tracked) -> bool:
    """Return whether the folder holds an earlier run with this id."""
    return any((tracked.folder / "wandb").glob(f"*run-*-{tracked.run_id}"))


def close(failed: bool = False) -> None:
    """End the W&B run of this process, if there is one, so that the next stage gets a separate run."""
    import sys

    if "wandb" in sys.modules:
        sys.modules["wandb"].finish(1 if failed else 0)


def _key_at_hand() -> bool:
    """Return whether ``wandb login`` has stored a key for the host, in the file where W&B reads it."""
    import netrc

    stored = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    with suppress(OSError, netrc.NetrcParseError):  # with a path, netrc ignores the file's permissions, as W&B does
        return urlsplit(url).netloc in netrc.netrc(stored).hosts
    return False
