"""A stage that several processes compute together: the pipeline starts them, waits, and takes what the first returns.

They run this stage and nothing else, so that sweeps and several devices compose. All goes through a folder within that
of the stage, which every process sees, whatever machine it is on:

    task.json       what is to be done
    done.json       what the first process returned, and the machine that it ran on
    failed-1.json   how process 1 failed
    output-1.txt    what process 1 printed; the first prints where the pipeline does

The processes end when the file ``stop`` is there, the folder is gone, or the pipeline on their machine dead.
"""

import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from condensery.errors import DiskError, UserError
from condensery.pipeline.launch.launchers import Started, start
from condensery.pipeline.launch.stage_call import DONE, FAILED, PATIENCE, STOP, StageCall, about_machine
from condensery.stages.base import Context, Runtime, StageConfig
from condensery.stages.launcher import SlurmLauncher
from condensery.stages.registry import Stage
from condensery.system.children import Parent
from condensery.system.files import read_json

_PREFIX = "processes-"
_PAUSE = 0.1  # seconds between two looks
_LAST_WORDS = 0.5  # seconds in which the others may say why they failed as well


class ProcessError(Exception):
    """An unexpected exception in one of the processes; its cause holds the traceback."""


class _EndedError(UserError):
    """Processes that came to an end without a word. ``exit_reason`` says how."""

    def __init__(self, name: str, exit_reason: str) -> None:
        super().__init__(f"stage {name}: {exit_reason}; run the same command to go on")
        self.exit_reason = exit_reason


def compute(stage: Stage, config: StageConfig, context: Context) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Compute a stage, here or in processes of its own; what it returns, and the machine that it ran on.

    Raises what the stage raises, and ``UserError`` where a process dies.
    """
    runtime = context.runtime
    _clear(context.folder)  # of an attempt that was killed; its processes end themselves
    number = processes_a_node(runtime) if stage.together else 1
    several = stage.together and (number > 1 or runtime.launcher.kind != "local")
    if not several or not stage.by_several(config, context):
        return stage.function(config, context) or {}, about_machine(runtime)
    if isinstance(runtime.launcher, SlurmLauncher):
        threads = runtime.launcher.cpus_per_process
    else:
        threads = max(1, runtime.threads // number)
    context = replace(context, runtime=replace(runtime, devices=1, threads=threads))
    return _in_processes(stage, config, context, number)


def processes_a_node(runtime: Runtime) -> int:
    """``trainer.devices``; ``auto`` is every GPU that is seen here, or 1. Raises ``UserError`` where that says nothing."""
    if isinstance(runtime.devices, int):
        return runtime.devices
    if runtime.launcher.kind == "slurm":
        raise UserError("trainer.devices: auto says nothing before a SLURM job has its node; give the GPUs of a node")
    if runtime.accelerator == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _in_processes(
    stage: Stage, config: StageConfig, context: Context, number: int
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Compute a stage in so many processes a node; of SLURM's jobs one after the other, as long as each gets further."""
    while True:
        before = _checkpoints(context.folder)
        outcome = _attempt(stage, config, context, number)
        if isinstance(outcome, tuple):
            _clear(context.folder)
            return outcome
        further = isinstance(context.runtime.launcher, SlurmLauncher) and _checkpoints(context.folder) - before
        if not (isinstance(outcome, _EndedError) and further):
            raise outcome
        print(f"[{context.stage_name}] {outcome.exit_reason}; it got further, so another job goes on", flush=True)


def _clear(folder: Path) -> None:
    """Remove what attempts at a stage have left, their logs too."""
    for earlier in folder.glob(f"{_PREFIX}*"):
        shutil.rmtree(earlier, ignore_errors=True)


def _checkpoints(folder: Path) -> set[str]:
    """What a stage would go on from."""
    return {path.name for path in folder.glob("checkpoints/*.ckpt")}


def _attempt(
    stage: Stage, config: StageConfig, context: Context, number: int
) -> tuple[Mapping[str, Any], dict[str, str]] | Exception:
    """The same once; an error is returned."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=context.folder))
    StageCall(stage.kind, config, context, socket.gethostname(), Parent.here()).write(folder)
    gpus = context.runtime.accelerator != "cpu"
    started = start(context.runtime.launcher, folder, context.stage_name, number, gpus)
    try:
        exit_reason = _wait(started, folder)
    finally:
        (folder / STOP).touch()
        started.end(PATIENCE)
    failures = [failure for _, failure in sorted((path.name, read_json(path)) for path in _failures(folder))]
    if error := _error(failures, exit_reason, context.stage_name):
        return error
    done = read_json(folder / DONE)
    return done["summary"], {**done["machine"], "processes": str(done["processes"])}


def _failures(folder: Path) -> list[Path]:
    return list(folder.glob(FAILED.format("*")))


def _wait(started: Started, folder: Path) -> str:
    """Until all have ended, or one has failed; how one died, empty where none did."""
    while (exit_reason := started.exit_reason()) is None and not _failures(folder):
        time.sleep(_PAUSE)
    if _failures(folder):
        time.sleep(_LAST_WORDS)
        exit_reason = started.exit_reason()
    if not exit_reason and not _failures(folder) and not (folder / DONE).exists():
        exit_reason = "its processes ended without a result"
    return exit_reason or ""


def _error(failures: list[dict[str, str]], exit_reason: str, name: str) -> Exception | None:
    """What the pipeline says. What a user can mend comes first, then a death, of which others only see the consequence."""
    for kind, said in (("disk", DiskError), ("user", UserError)):
        if texts := [failure["text"] for failure in failures if failure["kind"] == kind]:
            return said(texts[0])
    if exit_reason:
        return _EndedError(name, exit_reason)
    if failures:
        earliest = min(failures, key=lambda failure: failure["time"])
        error = ProcessError(f"process {earliest['process']}: {earliest['reason']}")
        error.__cause__ = Exception(f"\n{earliest['text']}")
        return error
    return None
