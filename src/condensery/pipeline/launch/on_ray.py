"""Computes stages on a Ray cluster (``launcher=ray``): each stage is one task or several tasks, on any node.

A thread of the pipeline waits for the tasks of a stage. If a node or process is lost, the thread starts its tasks again.

- A stage with shards (``condensery.sharing.ShardTask``) begins as one task, which finds the missing shards. Further tasks
  compute these shards. One last task finishes the stage.
- A stage that trains on several devices is a group of tasks that start together (a placement group). The tasks form the
  process group of ``torch.distributed``. If one task is lost, the group starts again from the last checkpoint.
- Any other stage is one task.

Ray passes only small values between the processes. Artifacts stay on the file system that all nodes share.
"""

import logging
import math
import os
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.pipeline.launch import stage_process
from condensery.pipeline.launch.hardware import THREADS
from condensery.pipeline.launch.launchers import free_port, variables
from condensery.pipeline.launch.processes import LAST_WORDS, PREFIX, EndedError, checkpoints, clear, error_of
from condensery.pipeline.launch.stage_process import OUTPUT, PATIENCE, Computed, StageCall
from condensery.sharing import NotRankZero, ShardsLeft, ShardTask
from condensery.stages.base import Context, DistributedProcess, Runtime, StageConfig
from condensery.stages.launcher_config import RayLauncher
from condensery.stages.registry import Stage
from condensery.system.children import Parent, cores
from condensery.system.memory_growth import PROCESS
from condensery.system.progress import progress
from condensery.system.seconds import Seconds, cpu_seconds
from condensery.system.signals import hear_again

SETTINGS = {  # environment variables that are set unless they already have a value
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # with Ray's default of 15, all other processes of the machine go first
    "CONDENSERY_PROGRESS": "lines",  # bars of several stages would overwrite each other
}
PASSED = ("CONDENSERY_", "CUBLAS_", "HF_", "WANDB_")  # beginnings of names of environment variables that all nodes get
SECRET = ("KEY", "TOKEN")  # ends of the names of secrets among these variables, which no node gets
TASKS = 4  # shards form this many tasks per task that the cluster runs at once; rounding may nearly double it
WITHOUT_GPU = ("condensery.stages.corpus.", "condensery.stages.queries.", "condensery.stages.sentences.")
RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # options of a task -> what a node has
NODE_LOST = ("NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "TaskUnschedulableError")
LOST = {  # Ray's exceptions -> why a task ended without a result
    **dict.fromkeys(NODE_LOST, "a node was lost"),
    "OutOfMemoryError": "a node was short of memory",
    "WorkerCrashedError": "a process died, perhaps because memory was full",
}
_PAUSE = 0.2  # seconds between two checks
_PEERS = 40.0  # seconds that Ray may need to report a lost node, after processes that worked with it have failed
_ALONE = DistributedProcess(0, 1, 0, 1)
ending = threading.Event()
"""An event. When it is set, the threads that wait for tasks cancel the tasks and end."""


@dataclass(frozen=True)
class Part:
    """The work of one task.

    Attributes:
        number: index of the task; the output of task 0 is shown.
        shards: the shards that the task computes; unused in a group of processes.
        member: index of the task in a group of processes.
        environment: environment variables that ``torch.distributed`` reads.
    """

    number: int
    shards: ShardTask | None = None
    member: DistributedProcess | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a task: the result of the stage, the values of ``ShardsLeft``, a failure, or none of these."""

    wall: float
    cpu: float
    result: Computed | None = None
    agreed: list[Any] | None = None
    failure: dict[str, Any] | None = None


def _ray() -> Any:
    import ray  # the import takes a second, and Ray is optional

    return ray


@contextmanager
def cluster(launcher: RayLauncher, threads: int) -> Iterator[None]:
    """Context manager. Inside it, this process is connected to an existing cluster, or to a new one of this machine alone.

    Raises:
        UserError: the cluster cannot be reached, or cannot be started.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray = _ray()
    address = _address(launcher)
    mine = {"num_cpus": max(cores(), threads), "include_dashboard": False} if address == "local" else {}
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    ending.clear()
    try:
        ray.init(address, runtime_env={"env_vars": _environment()}, **quiet, **mine)
    except Exception as error:
        reason = " ".join(str(error).split())
        where = "Ray does not start on this machine" if address == "local" else f"no Ray cluster at {address}"
        raise UserError(f"launcher.address: {where} ({reason})") from None
    hear_again()
    with suppress(AttributeError):  # Ray's own lines about lost nodes, which no option silences
        ray._private.worker.print_to_stdstream = lambda *given, **named: None
    try:
        yield
    finally:
        ray.shutdown()


def _address(launcher: RayLauncher) -> str:
    return launcher.address or os.environ.get("RAY_ADDRESS") or "local"


def _environment() -> dict[str, str]:
    """Return the environment variables of the workers. PYTHONPATH has this process's import folders without libraries."""
    named = {name: value for name, value in os.environ.items() if name.startswith(PASSED) and not name.endswith(SECRET)}
    libraries = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = [path for path in sys.path if path and not path.startswith(libraries)]
    return {**PROCESS, **named, "PYTHONPATH": os.pathsep.join(own)}


def compute(stage: Stage, config: StageConfig, context: Context, seconds: Seconds) -> Computed:
    """Compute a stage as tasks of the cluster that this process is connected to.

    Args:
        stage: the stage.
        config: its config.
        context: its context.
        seconds: receives the seconds that the tasks measure. The time that tasks wait for a free node does not count.

    Returns:
        the metrics that the stage returns, and a description of its machine.

    Raises:
        UserError: bad input, or the stage was lost too often.
        Exception: any exception that the stage raises.
    """
    clear(context.folder)
    stages = Tasks(stage, config, context)
    try:
        result = stages.result()
    finally:
        seconds.measured(stages.wall, stages.cpu)
    clear(context.folder)
    return result


class Tasks:
    """The tasks of one stage.

    Attributes:
        wall: seconds of the tasks that have ended; tasks that run at the same time count once.
        cpu: CPU seconds of these tasks.
    """

    def __init__(self, stage: Stage, config: StageConfig, context: Context) -> None:
        assert isinstance(context.runtime.launcher, RayLauncher)
        self.ray, self.launcher, self.context = _ray(), context.runtime.launcher, context
        self.number = self._processes(context.runtime) if stage.together is True else 1
        own = self.launcher.stages.get(stage.kind), self.launcher.stages.get(context.stage_name)
        given = {key: value for one in (self.launcher, *own) if one for key, value in one if value is not None}
        threads = given.get("num_cpus") or max(1, context.runtime.threads // self.number)
        gpus = stage.together or not stage.place.startswith(WITHOUT_GPU)
        self.wanted = {
            "num_cpus": given.get("num_cpus") or context.runtime.threads / self.number,
            "num_gpus": given.get("num_gpus", self._gpu(context.runtime.accelerator) if gpus else 0),
            "memory": round(1e9 * given.get("memory", 0)),
        }
        self.bundle = {RESOURCES[key]: amount for key, amount in self.wanted.items() if amount}
        self.variables = {variable: str(threads) for variable in THREADS}
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=context.folder))
        alone = replace(context, runtime=replace(context.runtime, devices=1, threads=threads))
        self.call = StageCall(stage.kind, config.model_dump(mode="json"), alone, socket.gethostname(), Parent.here())
        self.wall = self.cpu = 0.0
        self.shown = 0  # bytes

    def _gpu(self, accelerator: str) -> int:
        return int(accelerator == "gpu" or (accelerator == "auto" and "GPU" in self.ray.cluster_resources()))

    def _processes(self, runtime: Runtime) -> int:
        if isinstance(runtime.devices, int):
            return runtime.devices
        return max(1, int(self.ray.cluster_resources().get("GPU", 0))) if self._gpu(runtime.accelerator) else 1

    def result(self) -> Computed:
        """Compute the stage, and start lost tasks again.

        Raises:
            EndedError: tasks were lost too often without progress, or all ended without a result.
        """
        name, left, first, tries = self.context.stage_name, math.inf, ShardTask(), self.launcher.retries
        while True:
            before = checkpoints(self.context.folder)
            outcomes, lost = self._group() if self.number > 1 else self._run([Part(0, first)])
            outcome = next((one for one in outcomes if one.result or one.agreed), None)
            if outcome and outcome.agreed:
                further, left = len(outcome.agreed[-1]) < left, len(outcome.agreed[-1])
                lost, first = self._shards(outcome.agreed)
                left = left if lost else math.inf
            elif outcome and outcome.result and not lost:
                return outcome.result
            else:
                further = bool(checkpoints(self.context.folder) - before)
            if lost:
                tries = self.launcher.retries if further else tries - 1
                if tries < 0:
                    raise EndedError(name, lost)
                print(f"[{name}] {lost}; the lost work is computed again", flush=True)
            elif not (outcome and outcome.agreed):
                raise EndedError(name, "its processes ended without a result")

    def _shards(self, agreed: list[Any]) -> tuple[str, ShardTask]:
        """Compute missing shards as tasks. Return why a task was lost, or "", and the task that continues the stage."""
        missing = agreed[-1]
        size = max(1, len(missing) // (TASKS * max(1, self._room())))
        runs = [missing[first : first + size] for first in range(0, len(missing), size)]
        name = self.context.stage_name
        parts = [Part(number, ShardTask(agreed, run)) for number, run in enumerate(runs, 1)]
        print(f"[{name}] {len(missing)} shards are computed in {len(runs)} tasks", flush=True)
        with progress(name, len(runs), "tasks") as task:
            _, lost = self._run(parts, done=task.advance)
        return lost, ShardTask([*agreed[:-1], [] if lost else missing])

    def _room(self) -> int:
        """Return how many of the tasks the cluster can run at once if it runs nothing else."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(int(min(node.get(key, 0) / amount for key, amount in self.bundle.items())) for node in nodes)

    def _group(self) -> tuple[list[Outcome], str]:
        """Compute the stage in a group of processes, each a task."""
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._check_room()
        group = placement_group([self.bundle] * self.number, strategy="PACK")
        try:
            self._until([group.ready()])
            places = [PlacementGroupSchedulingStrategy(group, index) for index in range(self.number)]
            meeting = self.ray.remote(num_cpus=0, max_retries=0)(_meeting).options(scheduling_strategy=places[0])
            address, port = self.ray.get(meeting.remote())
            nodes = list(placement_group_table(group)["bundles_to_node_id"].values())
            parts = []
            for rank, node in enumerate(nodes):
                member = DistributedProcess(rank, self.number, nodes[:rank].count(node), nodes.count(node))
                parts.append(Part(rank, None, member, variables(member, address, port)))
            return self._run(parts, places)
        except self.ray.exceptions.RayError as error:
            return [], _lost(error)
        finally:
            remove_placement_group(group)

    def _check_room(self) -> None:
        """Raise ``UserError`` if tasks have no room on this machine. On a cluster, only print a line: nodes may join."""
        if self._room() >= self.number:
            return
        wanted = ", ".join(f"{key} {amount:g}" for key, amount in self.bundle.items())
        text = f"the cluster has no room for {self.number} x ({wanted})"
        if _address(self.launcher) == "local":
            raise UserError(f"launcher: stage {self.context.stage_name}: {text}; lower num_cpus, num_gpus or memory")
        print(f"[{self.context.stage_name}] waits: {text}", flush=True)

    def _run(
        self, parts: Sequence[Part], places: Sequence[Any] = (), done: Callable[[], None] = lambda: None
    ) -> tuple[list[Outcome], str]:
        """Run tasks. Return the outcomes of the tasks, and the reason why a task was lost, or an empty string.

        Args:
            parts: the work of each task.
            places: for a group of tasks, the scheduling strategy that puts each task on its node. If one task of a group is
                lost, the other tasks are cancelled.
            done: is called for each task that has ended.

        Raises:
            Exception: a task failed; the other tasks are cancelled.
        """
        self._check_room()
        once = {"max_calls": 1} if places or self.wanted["num_gpus"] else {}
        task = self.ray.remote(**self.wanted, **once, max_retries=0)(take_part)
        options = [{"scheduling_strategy": place} for place in places] or [{} for _ in parts]
        variables, quiet = {"env_vars": self.variables}, os.environ["CONDENSERY_PROGRESS"] == "off"
        running = [
            task.options(runtime_env=variables, **option).remote(self.call, part, self.folder, os.getcwd(), quiet)
            for part, option in zip(parts, options, strict=True)
        ]
        outcomes: list[Outcome] = []
        lost, began, until = "", time.monotonic(), math.inf
        try:
            while running and not (lost and places) and time.monotonic() < until:
                for reference in self._until(running, LAST_WORDS):
                    running.remove(reference)
                    try:
                        outcomes.append(self.ray.get(reference))
                        done()
                    except self.ray.exceptions.RayError as error:
                        lost = _lost(error)
                failures = [outcome.failure for outcome in outcomes if outcome.failure]
                if failures:  # in a group, a process may fail because another was lost
                    alone = places and all(failure["kind"] == "bug" for failure in failures)
                    until = min(until, time.monotonic() + (_PEERS if alone else LAST_WORDS))
        finally:
            self._cancel(running)
            self._show()
            together = max((outcome.wall for outcome in outcomes), default=0.0)
            self.wall += together if places or len(parts) == 1 else time.monotonic() - began
            self.cpu += sum(outcome.cpu for outcome in outcomes)
        fault = error_of(failures, lost if places else "", self.context.stage_name)
        if fault and not isinstance(fault, EndedError):
            raise fault
        return outcomes, lost

    def _until(self, references: list[Any], seconds: float = math.inf) -> list[Any]:
        """Wait until a task has ended, for at most ``seconds``, and show the output of task 0 while waiting."""
        until = time.monotonic() + seconds
        ready: list[Any] = []
        while not ready and time.monotonic() < until:
            if ending.is_set():
                raise SystemExit
            ready, _ = self.ray.wait(references, timeout=_PAUSE)
            self._show()
        return ready

    def _show(self) -> None:
        """Print what task 0 has printed since the last call."""
        with suppress(FileNotFoundError), open(self.folder / OUTPUT.format(0), "rb") as stream:
            stream.seek(self.shown)
            lines, end, _ = stream.read().rpartition(b"\n")
            self.shown += len(lines + end)
            print((lines + end).decode(errors="replace"), end="", flush=True)

    def _cancel(self, references: list[Any]) -> None:
        """End tasks: first by an exception in each task, after a while by force."""
        for force in (False, True):
            for reference in references:
                with suppress(Exception):
                    self.ray.cancel(reference, force=force)
            if references:
                _, references = self.ray.wait(references, num_returns=len(references), timeout=PATIENCE)


def _lost(error: Exception) -> str:
    """Return the reason why a task was lost. Raises ``UserError`` if Ray could not run the task at all."""
    for kind in type(error).__mro__:
        if kind.__name__ in LOST:
            return LOST[kind.__name__]
    raise UserError(f"launcher: {str(error).strip().splitlines()[-1].strip()}") from None


def _meeting() -> tuple[str, int]:
    """Return the address of this node and a free port, where the processes of a group meet."""
    import ray

    return ray.util.get_node_ip_address(), free_port()


def take_part(call: StageCall, part: Part, folder: Path, directory: str, quiet: bool) -> Outcome:
    """Compute a part of a stage, as a task on any node.

    Args:
        call: the stage.
        part: the part.
        folder: folder of the outputs of the tasks.
        directory: working directory of the pipeline, which relative paths in the recipe start from.
        quiet: whether no progress is shown.
    """
    began, spent = time.monotonic(), cpu_seconds()

    def outcome(**what: Any) -> Outcome:
        return Outcome(time.monotonic() - began, cpu_seconds() - spent, **what)

    try:
        if not folder.is_dir():
            text = f"node {socket.gethostname()} does not see {folder}; it must be on a file system of all nodes"
            raise UserError(f"output_root: {text}")
        with suppress(OSError):
            os.chdir(directory)
        os.environ.update(part.environment, CONDENSERY_PROGRESS="off" if quiet or part.number else "lines")
        with _output_into(folder / OUTPUT.format(part.number)):
            return outcome(result=stage_process.computed(call, part.number, part.member, part.shards))
    except ShardsLeft as left:
        return outcome(agreed=left.agreed)
    except NotRankZero:
        return outcome()
    except Exception as error:
        return outcome(failure=stage_process.failure_of(error, part.member or _ALONE))


@contextmanager
def _output_into(path: Path) -> Iterator[None]:
    """Context manager. Inside it, all output of this process goes into a file."""
    before = [os.dup(output.fileno()) for output in (sys.stdout, sys.stderr)]
    stage_process.print_into(path)
    try:
        yield
    finally:
        for output, descriptor in zip((sys.stdout, sys.stderr), before, strict=True):
            output.flush()
            os.dup2(descriptor, output.fileno())
            os.close(descriptor)
