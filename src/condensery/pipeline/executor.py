"""Runs a graph: one stage after the other in this process, or several stages in parallel in worker processes.

When a stage fails, the stages that depend on it are skipped, and all other stages continue. Stages that neither train nor
need a trained model come first. When their data lack something that a later stage needs, the run ends at once.
"""

import os
import re
import shlex
import time
from collections.abc import Collection, Iterable
from importlib import import_module

from condensery.errors import DiskError, UserError
from condensery.pipeline.faults import follow
from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.launch.threads import THREADS, limit_threads
from condensery.pipeline.store import Store
from condensery.pipeline.workers import Failure, Worker, attempt
from condensery.reporting.plain import one_line
from condensery.stages.base import Runtime
from condensery.stages.training_config import OptimisedStageConfig
from condensery.system.progress import clock
from condensery.system.signals import deaf_to_ctrl_c, leave_if_asked

MANY = 4  # a hint names no more stages than this


def execute(graph: Graph, store: Store, runtime: Runtime) -> dict[str, Failure]:
    """Make every artifact of the graph that can be made.

    Returns:
        the failures, by the name of the stage.

    Raises:
        DiskError: immediately, because a full disk would also make the next stages fail.
        UserError: as soon as data are there that a later stage will find wanting.
    """
    reused = [name for name, state in store.states(graph).items() if state == "hit"]
    check_data(graph, store, reused, reused)
    print(f"{len(graph.nodes)} stages, {len(reused)} of them reused from {store.folder}", flush=True)
    warn(graph, store, reused)
    run = _Run(graph, store, runtime, reused)
    if graph.root.jobs == 1:
        run.in_this_process()
    elif run.left():
        run.in_workers()
    return run.failures


def warn(graph: Graph, store: Store, names: Iterable[str] | None = None) -> None:
    """Print the warnings of these stages' artifacts, by default of all stages, whether computed now or reused."""
    for name in graph.nodes if names is None else names:
        for text in store.artifact(graph.nodes[name]).warnings:
            print(f"[{name}] warning: {one_line(text)}", flush=True)


def check_data(graph: Graph, store: Store, made: Collection[str], done: Collection[str]) -> None:
    """Check the data that the stages ``made`` have made, for all stages that read them and are not ``done``.

    Raises:
        UserError: a stage will lack something; the message says how to leave the stage out, where few need it.
    """
    left = [node for name, node in graph.nodes.items() if name not in done]
    read = [(node, field, name) for node in left for field in node.config.data_checks for name in node.inputs[field]]
    for node, field, name in read:
        for check in node.config.data_checks[field] if name in made else ():
            checks = import_module("condensery.stages.data_checks")  # NumPy and Arrow, which a dry run may do without
            if fault := getattr(checks, check)(node.config, store.artifact(graph.nodes[name])):
                hint = _without(graph, node.name) if fault[0] == "corpus" else ""  # other keys may be set otherwise
                raise UserError(f"{_key(graph, node, fault[0])}: {fault[1]}{hint}")


def _key(graph: Graph, node: Node, field: str) -> str:
    if node.name in graph.root.stages:
        return f"stages.{node.name}.{field}"
    return follow({"stage": graph.root.stage, "stages": graph.root.stages}, ("stage", node.kind), (field,))


def _without(graph: Graph, name: str) -> str:
    """Return a hint that says how to leave out a stage of the recipe; empty where many stages and rows need it."""
    needing = causes(graph, [name])
    stages = [f"stages.{one}=null" for one in needing if one in graph.root.stages]
    labels = [re.sub(r"([\\:()\[\]{}=,])", r"\\\1", label) for label, of in graph.rows.items() if of in needing]
    rows = [shlex.quote(f"table.rows={{{', '.join(f'{label}: null' for label in labels)}}}")] if labels else []
    few = name in graph.root.stages and len(stages) <= MANY and len(labels) < len(graph.rows)
    return f"; or leave out what needs it: {' '.join([*stages, *rows])}" if few else ""


def causes(graph: Graph, failed: Collection[str]) -> dict[str, str]:
    """Return each stage that cannot be made because a stage of ``failed`` failed, with that failed stage."""
    cause_of = {}
    for name, node in graph.nodes.items():  # in topological order
        if name in failed:
            cause_of[name] = name
        elif cause := next((cause_of[parent] for parent in node.parents if parent in cause_of), None):
            cause_of[name] = cause
    return cause_of


def chain_lengths(graph: Graph) -> dict[str, int]:
    """Return the number of stages in the longest chain from each node; the node with the longest chain is started first."""
    lengths = dict.fromkeys(graph.nodes, 1)
    for node in reversed(list(graph.nodes.values())):
        for parent in node.parents:
            lengths[parent] = max(lengths[parent], 1 + lengths[node.name])
    return lengths


def learned(graph: Graph) -> set[str]:
    """Return the stages that train, or need a trained model."""
    training = [name for name, node in graph.nodes.items() if isinstance(node.config, OptimisedStageConfig)]
    return set(causes(graph, training))


class _Run:
    """The state of a run: the stages that are finished, started and failed."""

    def __init__(self, graph: Graph, store: Store, runtime: Runtime, reused: Iterable[str]) -> None:
        self.graph, self.store, self.runtime = graph, store, runtime
        self.later = learned(graph)
        self.done = set(reused)
        self.started: dict[str, float] = dict.fromkeys(self.done, 0.0)
        self.failures: dict[str, Failure] = {}

    def left(self) -> set[str]:
        """Return the stages that are not finished and can still be made."""
        return self.graph.nodes.keys() - self.done - causes(self.graph, self.failures).keys()

    def ready(self) -> list[Node]:
        """Return the stages that can be started, in the order of the graph, and those without trained models first."""
        nodes = self.graph.nodes.values()
        ready = [node for node in nodes if node.name not in self.started and self.done.issuperset(node.parents)]
        return sorted(ready, key=lambda node: node.name in self.later)

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
            result: whether this process computed it, or the failure.

        Raises:
            DiskError: the stage failed because of the disk.
            UserError: a later stage will find wanting what the stage made.
        """
        if isinstance(result, Failure):
            self.failures[node.name] = result
            if isinstance(result.error, DiskError):
                raise result.error
            if self.left():
                print(f"[{node.name}] failed: {result.reason}; stages that do not need it go on", flush=True)
            return
        self.done.add(node.name)
        seconds = time.monotonic() - self.started[node.name]
        said = f"done in {clock(seconds)}" if result else "computed by another process"
        print(f"[{node.name}] {said}", flush=True)
        warn(self.graph, self.store, [node.name])
        check_data(self.graph, self.store, [node.name], self.done)

    def in_this_process(self) -> None:
        """Compute one stage after the other in this process."""
        limit_threads(self.runtime.threads)
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
        chains = chain_lengths(self.graph)
        workers: list[Worker] = []
        try:
            while self.left():
                leave_if_asked()
                while len(workers) < size:
                    with deaf_to_ctrl_c():
                        workers.append(Worker(self.store.folder.parent, self.runtime, environment))
                idle = [worker for worker in workers if worker.node is None]
                first = sorted(self.ready(), key=lambda node: (node.name in self.later, -chains[node.name]))
                for worker, node in zip(idle, first, strict=False):
                    self.start(node)
                    worker.begin(node, self.forced(node))
                for worker in Worker.wait([worker for worker in workers if worker.node]):
                    self.finish(*worker.end())
                for dead in [worker for worker in workers if worker.process.exitcode is not None and not worker.node]:
                    dead.stop()
                    workers.remove(dead)
        finally:
            for worker in workers:
                worker.stop()
