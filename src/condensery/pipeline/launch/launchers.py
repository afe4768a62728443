"""Starts the processes that compute a stage together: directly, through torchrun, or as a SLURM job."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.stages.base import DistributedProcess
from condensery.stages.launcher_config import Launcher, SlurmLauncher, TorchrunLauncher
from condensery.system.children import guarded, manner_of_death

STAGE_PROCESS = "condensery.pipeline.launch.stage_process"


def start(launcher: Launcher, folder: Path, name: str, number: int, gpus: bool) -> "Commands | Job":
    """Start the processes that compute a stage together.

    Args:
        launcher: config of the launcher.
        folder: folder with the task.
        name: name of the stage, for error messages.
        number: processes per node.
        gpus: whether each process gets a GPU.

    Raises:
        UserError: the processes cannot be started.
    """
    if isinstance(launcher, SlurmLauncher):
        return Job(launcher, folder, name, number, gpus)
    if isinstance(launcher, TorchrunLauncher):
        command = _torchrun(launcher, folder, number)
        if launcher.nodes > 1 and not launcher.before:
            print(f"[{name}] waits for {launcher.nodes - 1} more nodes; run on each: {shlex.join(command)}", flush=True)
        if not shutil.which(command[0]):
            raise UserError(f"launcher.before: {command[0]}: no such command")
        return Commands([(guarded(command), {})])
    here, port = [sys.executable, "-m", STAGE_PROCESS, str(folder)], free_port()
    members = [DistributedProcess(rank, number, rank, number) for rank in range(number)]
    return Commands([(here, variables(member, "127.0.0.1", port)) for member in members])


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def variables(member: DistributedProcess, address: str, port: int) -> dict[str, str]:
    """Return the environment variables that ``torch.distributed`` reads in a process.

    Args:
        member: index of the process among the processes that compute the stage together.
        address: address of the node of the first process.
        port: port where the processes meet.
    """
    numbers = {"RANK": member.rank, "WORLD_SIZE": member.processes, "MASTER_PORT": port}
    local = {"LOCAL_RANK": member.local_rank, "LOCAL_WORLD_SIZE": member.local_processes}
    return {"MASTER_ADDR": address, **{name: str(value) for name, value in {**numbers, **local}.items()}}


def _torchrun(launcher: TorchrunLauncher, folder: Path, number: int) -> list[str]:
    meeting = ["--standalone"]
    if launcher.endpoint:
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={launcher.endpoint}", f"--rdzv-id={folder.name}"]
    nodes = [f"--nnodes={launcher.nodes}", f"--nproc-per-node={number}", "--max-restarts=0"]
    torchrun = [*launcher.before, sys.executable, "-m", "torch.distributed.run"]
    return [*torchrun, *nodes, *meeting, "-m", STAGE_PROCESS, str(folder)]


class Commands:
    """Processes on this machine, each in a separate session, so that Ctrl-C reaches only the pipeline."""

    def __init__(self, commands: Sequence[tuple[list[str], dict[str, str]]]) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the same import folders as here
        for command, environment in commands:
            whole = {**os.environ, **modules, **environment}
            self.running.append(subprocess.Popen(command, env=whole, start_new_session=True))

    def exit_reason(self) -> str | None:
        """Return None while the processes run, an empty string after success, and otherwise the reason why one ended."""
        codes = [process.poll() for process in self.running]
        for rank, code in enumerate(codes):
            if code:
                which = f"process {rank} of {len(codes)}" if len(codes) > 1 else "torchrun"
                return f"{which} died ({manner_of_death(code)})"
        return None if None in codes else ""

    def end(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for the processes to end, and then kill them."""
        until = time.monotonic() + patience
        for process in self.running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also kills its child processes
            process.wait()


class Job:
    """A job that submitit has submitted to SLURM; it has the methods of ``Commands``."""

    def __init__(self, launcher: SlurmLauncher, folder: Path, name: str, number: int, gpus: bool) -> None:
        try:
            import submitit
        except ImportError:
            raise UserError("launcher: slurm needs submitit; pip install submitit") from None
        from condensery.pipeline.launch.stage_process import run_in_job

        try:
            executor = submitit.AutoExecutor(folder / "job", cluster=launcher.cluster)
            executor.update_parameters(**_parameters(launcher, name, number, gpus))
            self.job: Any = executor.submit(run_in_job, folder)
        except (RuntimeError, ValueError, subprocess.CalledProcessError, OSError) as error:
            raise UserError(f"launcher: the job cannot be submitted ({' '.join(str(error).split())})") from None
        self.log = self.job.paths.stdout
        print(f"[{name}] job {self.job.job_id}; its log: {self.log}", flush=True)

    def exit_reason(self) -> str | None:
        if not self.job.done():
            return None
        with suppress(Exception):
            self.job.results()
            return ""
        return f"job {self.job.job_id} ended ({self.job.state}); its log: {self.log}"

    def end(self, patience: float) -> None:
        until = time.monotonic() + patience
        while not self.job.done() and time.monotonic() < until:
            time.sleep(0.1)
        if not self.job.done():
            self.job.cancel(check=False)


def _parameters(launcher: SlurmLauncher, name: str, number: int, gpus: bool) -> dict[str, Any]:
    """Return the parameters of submitit's ``AutoExecutor``."""
    parameters = {
        "name": f"condensery-{name}",
        "nodes": launcher.nodes,
        "tasks_per_node": number,
        "gpus_per_node": number if gpus else None,
        "cpus_per_task": launcher.cpus_per_process,
        "timeout_min": max(1, round(60 * launcher.hours)),  # 0 would mean no limit
        "stderr_to_stdout": True,
        "mem_gb": launcher.memory,
        "slurm_partition": launcher.partition,
        "slurm_account": launcher.account,
        "slurm_setup": launcher.setup or None,
        "slurm_additional_parameters": launcher.options or None,
    }
    return {key: value for key, value in parameters.items() if value is not None}
