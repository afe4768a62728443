"""Runs a graph: one stage after the other in this process, or several stages in parallel in worker processes.

When a stage fails, the stages that depend on it are skipped, and all other stages continue. Stages that neither train nor
need a trained model come first. If the data of these stages lack something that a later stage needs, the run ends at once.

A worker computes one stage after the other and never outlives this process. Each worker leads its own process group. So a
stage's child processes end with the worker, and Ctrl-C reaches only this process. With Ray, stages are tasks of a cluster
instead (``pipeline.launch.on_ray``).
"""

import os
import re
import shlex
import signal
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from condensery.errors import DiskError, HubError, StageError, UserError, check_known, number_of, of_memory, of_the_disk
from condensery.pipeline.artifact_store import State, Store
from condensery.pipeline.config_check import follow
from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.launch import on_ray
from condensery.pipeline.launch.hardware import THREADS
from condensery.reporting.plain import one_line
from condensery.stages.base import Artifact, Runtime
from condensery.stages.launcher_config import RayLauncher
from condensery.stages.registry import registry
from condensery.stages.training_config import OptimisedStageConfig
from condensery.system import memory_growth
from condensery.system.children import Parent, manner_of_death
from condensery.system.progress import clock
from condensery.system.signals import deaf_to_ctrl_c, leave_if_asked, leave_upon
from condensery.system.spawning import spawning

PATIENCE = 5.0  # seconds between the request to end and killing a worker

MANY = 4  # a hint names no more stages than this


@dataclass(frozen=True)
class Failure:
    """The failure of a stage, without a traceback, which would keep the stage's objects in memory."""

    error: UserError | StageError
    reason: str  # the error in one line


class FailedStage(NamedTuple):
    """The reason why a stage has no artifact, and the failed stage: this stage, or one that this stage depends on."""

    stage: str
    reason: str


class Outcome(NamedTuple):
    """The failures by the name of the failed stage, and every stage that has no artifact because of a failure, by name."""

    failures: Mapping[str, Failure]
    failed_stages: Mapping[str, FailedStage]


def execute(graph: Graph, store: Store, states: Mapping[str, State], runtime: Runtime) -> Outcome:
    """Make every artifact of the graph that can be made.

    Raises:
        DiskError: immediately, because a full disk would also make the next stages fail.
        HubError: immediately, because stages that need the hub come before all long computation.
        UserError: as soon as finished data turn out to lack something that a later stage needs.
    """
    reused = [name for name, state in states.items() if state == "hit"]
    check_data(graph, store, reused, reused)
    print(f"{number_of(len(graph.nodes), 'stages')}, {len(reused)} of them reused from {store.folder}", flush=True)
    warn(graph, store, reused)
    run = _Run(graph, store, runtime, reused)
    if isinstance(runtime.launcher, RayLauncher):
        run.in_cluster(runtime.launcher)
    elif graph.root.jobs == 1:
        run.in_this_process()
    elif run.left():
        run.in_workers()
    return Outcome(run.failures, run.failed_stages() if run.failures else {})


def warn(graph: Graph, store: Store, names: Iterable[str] | None = None) -> None:
    """Print the warnings of the artifacts of ``names`` (default: all stages), including artifacts that are reused."""
    for name in graph.nodes if names is None else names:
        for text in Artifact(store.path(graph.nodes[name])).warnings:
            print(f"[{name}] warning: {one_line(text)}", flush=True)


def check_data(graph: Graph, store: Store, made: Collection[str], done: Collection[str]) -> None:
    """Check the data of the finished stages ``made``, for every stage that reads these data and is not in ``done``.

    Raises:
        UserError: the data lack something that a stage needs. If few stages and rows depend on this stage, the message
            says how to leave it out.
    """
    left = [node for name, node in graph.nodes.items() if name not in done]
    read = [(node, field, name) for node in left for field in node.config.data_checks for name in node.inputs[field]]
    for node, field, name in read:
        for check in node.config.data_checks[field] if name in made else ():
            checks = import_module("condensery.stages.data_checks")  # NumPy and Arrow, which a dry run may not need
            if fault := getattr(checks, check)(node.config, Artifact(store.path(graph.nodes[name]))):
                hint = _without(graph, node.name) if fault[0] == "corpus" else ""  # other keys can be changed
                raise UserError(f"{_key(graph, node, fault[0])}: {fault[1]}{hint}")


def _key(graph: Graph, node: Node, field: str) -> str:
    if node.name in graph.root.stages:
        return f"stages.{node.name}.{field}"
    return follow({"stage": graph.root.stage, "stages": graph.root.stages}, ("stage", node.kind), (field,))


def _without(graph: Graph, name: str) -> str:
    """Return a hint that says how to leave out a stage of the recipe; empty if many stages and rows need it."""
    needing = causes(graph, [name])
    stages = [f"stages.{one}=null" for one in needing if one in graph.root.stages]
    labels = [re.sub(r"([\\:()\[\]{}=,])", r"\\\1", label) for label, of in graph.rows.items() if of in needing]
    rows = [shlex.quote(f"table.rows={{{', '.join(f'{label}: null' for label in labels)}}}")] if labels else []
    few = name in graph.root.stages and len(stages) <= MANY and len(labels) < len(graph.rows)
    return f"; or leave out the stages and rows that need it: {' '.join([*stages, *rows])}" if few else ""


def causes(graph: Graph, failed: Collection[str]) -> dict[str, str]:
    """Return, for each stage that cannot be made, the stage of ``failed`` that is the cause."""
    cause_of = {}
    for name, node in graph.nodes.items():  # in topological order
        if name in failed:
            cause_of[name] = name
        elif cause := next((cause_of[parent] for parent in node.parents if parent in cause_of), None):
            cause_of[name] = cause
    return cause_of


def chain_lengths(graph: Graph) -> dict[str, int]:
    """Return, for each node, the number of stages in the longest chain that begins at the node. Longer chains start first."""
    lengths = dict.fromkeys(graph.nodes, 1)
    for node in reversed(list(graph.nodes.values())):
        for parent in node.parents:
            lengths[parent] = max(lengths[parent], 1 + lengths[node.name])
    return lengths


class _Run:
    """The state of a run: the stages that are finished, started and failed."""

    def __init__(self, graph: Graph, store: Store, runtime: Runtime, reused: Iterable[str]) -> None:
        self.graph, self.store, self.runtime = graph, store, runtime
        texts = [node.name for node in graph.nodes.values() if node.kind == "corpus"]
        training = [name for name, node in graph.nodes.items() if isinstance(node.config, OptimisedStageConfig)]
        late = dict.fromkeys(causes(graph, texts), 2) | dict.fromkeys(causes(graph, training), 3)
        self.turns = {name: 0 if name in texts else late.get(name, 1) for name in graph.nodes}
        self.done = set(reused)
        self.started: dict[str, float] = dict.fromkeys(self.done, 0.0)
        self.failures: dict[str, Failure] = {}

    def left(self) -> set[str]:
        """Return the stages that are not finished and can still be made."""
        return self.graph.nodes.keys() - self.done - causes(self.graph, self.failures).keys()

    def failed_stages(self) -> dict[str, FailedStage]:
        """Return the stages that failed or could not be started. A stage is left out if it and its inputs have artifacts."""
        cause_of = causes(self.graph, self.failures)
        lost = causes(self.graph, [name for name in cause_of if not self.store.sound(self.graph.nodes[name])])
        return {name: FailedStage(cause_of[name], self.failures[cause_of[name]].reason) for name in lost}

    def ready(self) -> list[Node]:
        """Return the stages that can be started, in the order of the graph.

        Collections come first, then stages that read no texts, such as a model on the hub. Stages with trained models come
        last. So a fault of the data, or a hub that cannot be reached, ends the run before any long computation.
        """
        nodes = self.graph.nodes.values()
        ready = [node for node in nodes if node.name not in self.started and self.done.issuperset(node.parents)]
        return sorted(ready, key=lambda node: self.turns[node.name])

    def longest_first(self) -> list[Node]:
        """Return the stages of ``ready`` in the same groups, and within each group the longest chains first."""
        chains = chain_lengths(self.graph)
        return sorted(self.ready(), key=lambda node: (self.turns[node.name], -chains[node.name]))

    def forced(self, node: Node) -> bool:
        """Return whether a stage is to be computed even if its artifact exists."""
        return node.name in self.graph.root.force

    def start(self, node: Node) -> None:
        """Record that a stage starts, and print it."""
        self.started[node.name] = time.monotonic()
        print(f"[{node.name}] starts", flush=True)

    def finish(self, node: Node, result: bool | Failure) -> None:
        """Record that a stage has finished or failed, and print one line about it.

        A failure that ends the run is not printed here, because the run's last line reports it.

        Args:
            node: the stage.
            result: True = this process computed the artifact, False = another process did; or the failure.

        Raises:
            DiskError, HubError: the stage failed because of the disk, or because the hub cannot be reached.
            UserError: the data that the stage made lack something that a later stage needs.
        """
        if isinstance(result, Failure):
            self.failures[node.name] = result
            if isinstance(result.error, DiskError):
                raise result.error
            if isinstance(result.error, HubError):  # faults of the data that were found before come first
                raise next(iter(self.failures.values())).error
            if self.left():
                print(f"[{node.name}] failed: {result.reason}; stages that do not need it continue", flush=True)
            return
        self.done.add(node.name)
        seconds = time.monotonic() - self.started[node.name]
        message = f"done in {clock(seconds)}" if result else "computed by another process"
        print(f"[{node.name}] {message}", flush=True)
        metrics = Artifact(self.store.path(node)).manifest["metrics"]
        if not result or "trained_on" not in metrics:  # training warns before its first step
            warn(self.graph, self.store, [node.name])
        check_data(self.graph, self.store, [node.name], self.done)

    def in_this_process(self) -> None:
        """Compute one stage after the other in this process."""
        while ready := self.ready():
            leave_if_asked()
            self.start(ready[0])
            self.finish(ready[0], attempt(self.store, self.runtime, ready[0], self.forced(ready[0])))

    def in_workers(self) -> None:
        """Compute stages in workers that live as long as the run, so that each worker imports the heavy libraries once."""
        environment = {variable: str(self.runtime.threads) for variable in THREADS}
        if os.environ.get("CONDENSERY_PROGRESS") != "off":
            environment["CONDENSERY_PROGRESS"] = "lines"  # several bars on one terminal would overwrite each other
        size = min(self.graph.root.jobs, len(self.left()))
        workers: list[Worker] = []
        try:
            while self.left():
                leave_if_asked()
                while len(workers) < size:
                    with deaf_to_ctrl_c():
                        workers.append(Worker(self.store.folder.parent, self.runtime, environment))
                idle = [worker for worker in workers if worker.node is None]
                for worker, node in zip(idle, self.longest_first(), strict=False):
                    self.start(node)
                    worker.begin(node, self.forced(node))
                for worker in Worker.wait([worker for worker in workers if worker.node]):
                    self.finish(*worker.end())
                for dead in [worker for worker in workers if worker.process.exitcode is not None and not worker.node]:
                    Worker.stop([dead])
                    workers.remove(dead)
        finally:
            Worker.stop(workers)

    def in_cluster(self, launcher: RayLauncher) -> None:
        """Compute each stage that can be started as tasks of a Ray cluster. One thread per stage waits for its tasks.

        Raises:
            UserError: a key of the launcher names no stage, or there is no cluster.
        """
        known = {*self.graph.nodes, *registry()}
        for name in launcher.stages:
            check_known(name, known, f"launcher.stages: {name!r} is neither a stage nor a kind of stage")
        if not self.left():
            return
        waiting: dict[Future[bool | Failure], Node] = {}
        with on_ray.cluster(launcher, self.runtime.threads), ThreadPoolExecutor(len(self.left())) as threads:
            try:
                while self.left():
                    leave_if_asked()
                    for node in self.longest_first():
                        self.start(node)
                        waiting[threads.submit(attempt, self.store, self.runtime, node, self.forced(node))] = node
                    for future in futures.wait(waiting, 1.0, futures.FIRST_COMPLETED).done:
                        self.finish(waiting.pop(future), future.result())
            finally:
                on_ray.ending.set()


def attempt(store: Store, runtime: Runtime, node: Node, force: bool) -> bool | Failure:
    """Compute ``node`` in this process.

    If the process was asked to end, an exception that a library then raises is not a failure of the stage.

    Args:
        store: the store of the artifact.
        runtime: settings of this machine.
        node: the stage.
        force: whether to compute the stage even if the artifact exists.

    Returns:
        True = this call computed the artifact, False = another process did; otherwise the failure of the stage.
    """
    before = memory_growth.resident()
    try:
        return store.ensure(node, runtime, force)
    except Exception as error:
        leave_if_asked()
        known = of_the_disk(error) or of_memory(error, f"stages.{node.name}") or error
        if isinstance(known, UserError):
            kind = type(known) if isinstance(known, DiskError | HubError) else UserError
            return Failure(kind(str(known)), " ".join(str(known).split()))
        kept = f"(in the stage {node.name}; its work so far is kept in {store.partial(node)})"
        reason = " ".join("".join(traceback.format_exception_only(error)).split())
        return Failure(StageError(traceback.format_exc() + kept), reason)
    finally:
        memory_growth.clean_up(before)


class Worker:
    """The executor's side of one worker process, which ``stop`` ends.

    Create the worker in a block ``deaf_to_ctrl_c``. The block must last until the worker is registered with the code that
    stops workers. Otherwise a Ctrl-C in between would leave the worker running, and this process would wait for it at exit.
    """

    def __init__(self, root: Path, runtime: Runtime, environment: Mapping[str, str]) -> None:
        context = spawning("jobs")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(Parent.here(), theirs, root, runtime, dict(environment)))
        self.process.start()
        theirs.close()  # otherwise the pipe would stay open after the worker has ended
        self.node: Node | None = None

    def begin(self, node: Node, force: bool) -> None:
        """Make the worker compute ``node``."""
        self.node = node
        with suppress(BrokenPipeError):  # `wait` reports a worker that died
            self.connection.send((node, force))

    @staticmethod
    def wait(workers: Sequence["Worker"]) -> list["Worker"]:
        """Block until at least one of the workers has finished its stage or died."""
        while True:
            ready = wait([worker.connection for worker in workers], timeout=1.0)
            if ended := [w for w in workers if w.connection in ready or w.process.exitcode is not None]:
                return ended

    def end(self) -> tuple[Node, bool | Failure]:
        """Return the finished stage and its result: whether the worker computed it, or the failure of the stage."""
        node, self.node = self.node, None
        assert node is not None
        with suppress(EOFError, OSError):
            if self.connection.poll():
                return node, self.connection.recv()
        self.process.join(PATIENCE)
        _kill_group(self.process.pid)  # child processes that the worker left behind
        why = manner_of_death(self.process.exitcode)
        text = f"stage {node.name}: its process died ({why}); run the same command to resume"
        return node, Failure(UserError(text), text)

    @staticmethod
    def stop(workers: Sequence["Worker"]) -> None:
        """End the processes and their child processes: an idle process at once, a busy process by SIGTERM and then SIGKILL.

        If a second signal interrupts the wait after SIGTERM, SIGKILL follows at once. Otherwise Python would wait at exit for
        a process that still runs.
        """
        try:
            for worker in workers:
                with suppress(OSError):
                    worker.process.terminate() if worker.node else worker.connection.send(None)
            for worker in workers:
                worker.process.join(PATIENCE)
        finally:
            for worker in workers:
                _kill_group(worker.process.pid)
                worker.process.kill()  # a process that is still starting does not lead a group yet
                worker.process.join()
                worker.connection.close()


def _kill_group(leader: int | None) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if leader:
            os.killpg(leader, signal.SIGKILL)


def _serve(parent: Parent, connection: Connection, root: Path, runtime: Runtime, environment: dict[str, str]) -> None:
    """The worker's side: compute each node that is sent, until ``None`` is received."""
    with suppress(OSError):
        os.setpgid(0, 0)
    parent.end_with()
    leave_upon([signal.SIGTERM, signal.SIGUSR1], lambda number: SystemExit(128 + number))
    os.environ.update(environment)  # before torch is imported
    store = Store(root)
    with suppress(EOFError):  # the executor has ended
        for node, force in iter(connection.recv, None):
            connection.send(attempt(store, runtime, node, force))
