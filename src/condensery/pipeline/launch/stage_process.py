"""One of the processes that compute a stage together: ``python -m condensery.pipeline.launch.stage_process FOLDER``.

The process is started by the pipeline, torchrun or SLURM, which sets the variables that ``torch.distributed`` reads. Failures
are written into the folder. They do not change the exit code, because torchrun and SLURM would print several lines about it.
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from condensery.errors import DiskError, UserError, of_the_disk
from condensery.pipeline.launch.hardware import about_machine, limit_threads
from condensery.sharing import NotRankZero, ShardTask
from condensery.stages.base import Context, DistributedProcess, StageConfig
from condensery.stages.registry import registry
from condensery.system.children import Parent, alive, end_group
from condensery.system.files import read_json, write_json
from condensery.system.signals import leave_if_asked, leave_upon

CALL, DONE, FAILED, OUTPUT, STOP = "task.json", "done.json", "failed-{}.json", "output-{}.txt", "stop"
# the metrics that a stage returns, and a description of its machine
Computed = tuple[Mapping[str, Any], dict[str, str]]
PATIENCE = 4.0  # seconds between the request to end and killing the processes
_PAUSE = 0.3  # seconds between two checks whether the pipeline is alive


@dataclass(frozen=True)
class StageCall:
    """The task of the processes.

    Attributes:
        kind: kind of the stage.
        settings: config of the stage, as JSON values.
        context: context of the stage.
        host: host name of the pipeline's machine.
        pipeline: the pipeline's process, which waits for the processes of the stage.
    """

    kind: str
    settings: dict[str, Any]
    context: Context
    host: str
    pipeline: Parent

    @property
    def config(self) -> StageConfig:
        """The config of the stage."""
        return registry()[self.kind].config.model_validate(self.settings)

    def write(self, folder: Path) -> None:
        """Write the task into ``folder``, as JSON."""
        write_json(folder / CALL, TypeAdapter(StageCall).dump_python(self, mode="json"))

    @classmethod
    def read(cls, folder: Path) -> "StageCall":
        """Read the task that ``write`` wrote into ``folder``."""
        return TypeAdapter(cls).validate_python(read_json(folder / CALL))


def main(folder: Path) -> None:
    """Take part in the task of ``folder``, and write the result or the failure into the folder."""
    task = StageCall.read(folder)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    member = DistributedProcess(*(int(os.environ[name]) for name in names))
    leave_upon([signal.SIGTERM, signal.SIGUSR1], lambda number: SystemExit(0))
    if task.host == socket.gethostname() and not task.pipeline.gone():
        task.pipeline.end_with()
    threading.Thread(target=_end_with_pipeline, args=(folder, task), daemon=True).start()
    if member.rank:
        os.environ["CONDENSERY_PROGRESS"] = "off"
        print_into(folder / OUTPUT.format(member.rank))
    try:
        with suppress(NotRankZero):
            write_json(folder / DONE, computed(task, member.rank, member))
    except Exception as error:
        leave_if_asked()
        with suppress(FileNotFoundError):  # the pipeline has given up and removed the folder
            write_json(folder / FAILED.format(member.rank), failure_of(error, member))


def run_in_job(folder: Path) -> None:
    """Compute the stage whose task is in ``folder``, together with the other processes of a job that submitit has
    started.

    The process ends when SLURM signals that its time is nearly up. The pipeline then starts another job if this job wrote a
    later checkpoint than the job before.
    """
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    leave_upon([signal.SIGUSR2], lambda number: SystemExit(0))
    main(folder)


def computed(
    call: StageCall, number: int, member: DistributedProcess | None, shards: ShardTask | None = None
) -> Computed:
    """Compute a stage, or a part of it; return the stage's metrics and a description of its machine.

    Args:
        call: the stage.
        number: index of this process or task among the processes or tasks that compute the stage.
        member: index of this process in a group of processes; None = no group.
        shards: the part of this task, if the stage is split into shards.

    Raises:
        NotRankZero: the number is not 0, so that another process returns the result.
    """
    runtime = replace(call.context.runtime, distributed=member, task=shards)
    limit_threads(runtime.threads)
    summary = registry()[call.kind].function(call.config, replace(call.context, runtime=runtime))
    if number:
        raise NotRankZero
    together = {"processes": str(member.processes)} if member else {}
    return dict(summary or {}), about_machine(runtime.threads) | together


def failure_of(error: Exception, member: DistributedProcess) -> dict[str, Any]:
    """Describe a failure of a process in JSON values. Call it in an ``except`` block, because it reads the traceback."""
    error = of_the_disk(error) or error
    kind = "disk" if isinstance(error, DiskError) else "user" if isinstance(error, UserError) else "bug"
    text = traceback.format_exc() if kind == "bug" else str(error)
    reason = " ".join("".join(traceback.format_exception_only(error)).split())
    process = f"{member.rank} of {member.processes}"
    return {"kind": kind, "text": text, "process": process, "time": time.time(), "reason": reason}


def print_into(path: Path) -> None:
    """Redirect all output of this process, including messages of libraries, into a file."""
    with open(path, "ab") as stream:
        for output in (sys.stdout, sys.stderr):
            output.flush()
            os.dup2(stream.fileno(), output.fileno())


def _end_with_pipeline(folder: Path, task: StageCall) -> None:
    """End this process when the pipeline no longer needs it: first with ``finally`` blocks, after a while by force."""
    elsewhere = task.host != socket.gethostname()  # a pipeline on another machine is assumed to be alive
    while folder.exists() and not (folder / STOP).exists() and (elsewhere or alive(task.pipeline.process)):
        time.sleep(_PAUSE)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.7 * PATIENCE)
    end_group()


if __name__ == "__main__":
    with suppress(SystemExit):
        main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips exit handlers of libraries, which would wait for other processes
