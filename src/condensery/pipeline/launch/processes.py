"""Runs a stage that several processes compute together: starts them, waits, and takes the first process's result.

The processes run only this stage, so a sweep can use several devices. They exchange files in a subfolder of the stage's
folder, which every process can read on any node:

    task.json       the task
    done.json       the metrics that the first process returns, and its machine
    failed-1.json   the failure of process 1
    output-1.txt    the output of process 1; the first process writes to the output of the pipeline

The processes end when the file ``stop`` appears, when the folder is removed, or when the pipeline on their machine has died.
"""

import shutil
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from condensery.errors import DiskError, UserError
from condensery.pipeline.launch.hardware import about_machine, gpus_of_torch
from condensery.pipeline.launch.launchers import Commands, Job, start
from condensery.pipeline.launch.stage_process import DONE, FAILED, PATIENCE, STOP, Computed, StageCall
from condensery.stages.base import Context, Runtime, StageConfig
from condensery.stages.launcher_config import SlurmLauncher
from condensery.stages.registry import Stage
from condensery.system.children import Parent
from condensery.system.files import read_json

PREFIX = "processes-"
_PAUSE = 0.1  # seconds between two checks
LAST_WORDS = 0.5  # seconds that other processes get to report their failures


class ProcessError(Exception):
    """An unexpected exception in one of the processes; its cause contains the traceback."""


class EndedError(UserError):
    """A process ended without reporting a failure; ``exit_reason`` has the reason."""

    def __init__(self, name: str, exit_reason: str) -> None:
        super().__init__(f"stage {name}: {exit_reason}; run the same command to resume")
        self.exit_reason = exit_reason


def compute(stage: Stage, config: StageConfig, context: Context) -> Computed:
    """Compute a stage, in this process or in separate processes.

    Returns:
        the metrics that the stage returns, and a description of its machine.

    Raises:
        UserError: a process died.
        Exception: any exception that the stage raises.
    """
    runtime, launcher = context.runtime, context.runtime.launcher
    clear(context.folder)  # files of a killed attempt, whose processes end by themselves
    here, number = launcher.kind == "local", 1
    if stage.together and not (here and runtime.devices == 1):
        number = processes_a_node(runtime)
    if not stage.together or (here and number == 1) or not stage.by_several(config, context):
        return stage.function(config, context) or {}, about_machine(runtime.threads)
    threads = launcher.cpus_per_process if isinstance(launcher, SlurmLauncher) else max(1, runtime.threads // number)
    context = replace(context, runtime=replace(runtime, devices=1, threads=threads))
    return _in_processes(stage, config, context, number)


def processes_a_node(runtime: Runtime) -> int:
    """Return the number of processes per node: ``trainer.devices``. ``auto`` is the number of visible GPUs, at least 1.

    Raises:
        UserError: ``trainer.devices`` is ``auto`` with SLURM, which chooses the node only when the job runs.
    """
    if isinstance(runtime.devices, int):
        return runtime.devices
    if runtime.launcher.kind == "slurm":
        raise UserError("trainer.devices: auto is unknown before a SLURM job has its node; give the GPUs of a node")
    return 1 if runtime.accelerator == "cpu" else max(1, gpus_of_torch())


def _in_processes(stage: Stage, config: StageConfig, context: Context, number: int) -> Computed:
    """Compute a stage in ``number`` processes per node.

    With SLURM, further jobs are started as long as each job writes a later checkpoint than the previous job.
    """
    while True:
        before = checkpoints(context.folder)
        try:
            result = _attempt(stage, config, context, number)
        except EndedError as ended:
            further = isinstance(context.runtime.launcher, SlurmLauncher) and checkpoints(context.folder) - before
            if not further:
                raise
            print(f"[{context.stage_name}] {ended.exit_reason}; it made progress, so another job resumes", flush=True)
        else:
            clear(context.folder)
            return result


def clear(folder: Path) -> None:
    """Remove the files of earlier attempts at a stage, including their logs."""
    for earlier in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(earlier, ignore_errors=True)


def checkpoints(folder: Path) -> set[str]:
    """Return the names of the checkpoints that a stage would resume from."""
    return {path.name for path in folder.glob("checkpoints/*.ckpt")}


def _attempt(stage: Stage, config: StageConfig, context: Context, number: int) -> Computed:
    """Compute a stage once in ``number`` processes per node; return the result and the machine."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=context.folder))
    StageCall(stage.kind, config.model_dump(mode="json"), context, socket.gethostname(), Parent.here()).write(folder)
    gpus = context.runtime.accelerator != "cpu"
    started = start(context.runtime.launcher, folder, context.stage_name, number, gpus)
    try:
        exit_reason = _wait(started, folder)
    finally:
        (folder / STOP).touch()
        started.end(PATIENCE)
    failures = [failure for _, failure in sorted((path.name, read_json(path)) for path in _failures(folder))]
    if error := error_of(failures, exit_reason, context.stage_name):
        raise error
    metrics, machine = read_json(folder / DONE)
    return metrics, machine


def _failures(folder: Path) -> list[Path]:
    return list(folder.glob(FAILED.format("*")))


def _wait(started: Commands | Job, folder: Path) -> str:
    """Wait until all processes have ended or one has failed; return the reason why one died, or an empty string."""
    while (exit_reason := started.exit_reason()) is None and not _failures(folder):
        time.sleep(_PAUSE)
    if _failures(folder):
        time.sleep(LAST_WORDS)
        exit_reason = started.exit_reason()
    if not exit_reason and not _failures(folder) and not (folder / DONE).exists():
        exit_reason = "its processes ended without a result"
    return exit_reason or ""


def error_of(failures: list[dict[str, str]], exit_reason: str, name: str) -> Exception | None:
    """Return the error that the pipeline raises; None if no process failed.

    Faults that a user can fix come first. The death of a process comes next, because failures of other processes may be its
    consequence.
    """
    for kind, error_type in (("disk", DiskError), ("user", UserError)):
        if texts := [failure["text"] for failure in failures if failure["kind"] == kind]:
            return error_type(texts[0])
    if exit_reason:
        return EndedError(name, exit_reason)
    if failures:
        earliest = min(failures, key=lambda failure: failure["time"])
        error = ProcessError(f"process {earliest['process']}: {earliest['reason']}")
        error.__cause__ = Exception(f"\n{earliest['text']}")
        return error
    return None
