"""Runs a graph: one stage after the other in this process, or several side by side in workers of their own.

When a stage fails, the stages that depend on it are skipped, and all others go on.
"""

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from condensery.errors import DiskError
from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.launch.threads import THREADS, limit_threads
from condensery.pipeline.store import Store
from condensery.pipeline.workers import Failure, Worker, attempt
from condensery.reporting.plain import one_line
from condensery.stages.base import Runtime
from condensery.stages.registry import registry
from condensery.system.progress import clock
from condensery.system.signals import deaf_to_ctrl_c, leave_if_asked


def execute(graph: Graph, store: Store, runtime: Runtime) -> dict[str, Failure]:
    """Make every artifact of the graph that can be made.

    Returns:
        the failures, by the name of the stage.

    Raises:
        DiskError: at once, since a full disk would also hit the next stages.
    """
    states = store.states(graph)
    reused = sum(state == "hit" for state in states.values())
    print(f"{len(states)} stages, {reused} of them reused from {store.folder}", flush=True)
    warn(graph, store, [name for name, state in states.items() if state == "hit"])
    if graph.root.jobs == 1:
        return _in_this_process(graph, store, runtime)
    if reused < len(states):
        return _Pool(graph, store, runtime, min(graph.root.jobs, len(states) - reused)).run()
    return {}


def warn(graph: Graph, store: Store, names: Iterable[str] | None = None) -> None:
    """Print the warnings of the artifacts of these stages, by default of all, whether computed now or long ago."""
    for name in graph.nodes if names is None else names:
        for text in store.artifact(graph.nodes[name]).warnings:
            print(f"[{name}] warning: {one_line(text)}", flush=True)


def causes(graph: Graph, failed: Collection[str]) -> dict[str, str]:
    """Return, for each stage that cannot be made because of the stages ``failed``, the failed stage that is the cause."""
    cause_of = {}
    for name, node in graph.nodes.items():  # in topological order
        if name in failed:
            cause_of[name] = name
        elif cause := next((cause_of[parent] for parent in node.parents if parent in cause_of), None):
            cause_of[name] = cause
    return cause_of


def _in_this_process(graph: Graph, store: Store, runtime: Runtime) -> dict[str, Failure]:
    limit_threads(runtime.threads)
    failures: dict[str, Failure] = {}
    waiting = [n for n in graph.nodes.values() if n.name in graph.root.force or not store.has(n)]
    while waiting:
        leave_if_asked()
        node, *waiting = waiting
        print(f"[{node.name}] starts", flush=True)
        started = time.monotonic()
        result = attempt(store, runtime, node, node.name in graph.root.force)
        if isinstance(result, Failure):
            failures[node.name] = result
            lost = causes(graph, failures)
            waiting = [node for node in waiting if node.name not in lost]
        report(node, result, time.monotonic() - started, bool(waiting))
        if not isinstance(result, Failure):
            warn(graph, store, [node.name])
    return failures


def report(node: Node, result: bool | Failure, seconds: float, others: bool) -> None:
    """Print one line about a stage that is done or has failed.

    A failure that ends the run is not printed here, because the run's last line reports it.

    Args:
        node: the stage.
        result: whether this process computed it, or the failure.
        seconds: the duration.
        others: whether further stages are left.

    Raises:
        DiskError: the disk made the stage fail.
    """
    if not isinstance(result, Failure):
        print(
            f"[{node.name}] " + (f"done in {clock(seconds)}" if result else "computed by another process"), flush=True
        )
    elif isinstance(result.error, DiskError):
        raise result.error
    elif others:
        print(f"[{node.name}] failed: {result.reason}; stages that do not need it go on", flush=True)


def priorities(graph: Graph) -> dict[str, float]:
    """Return, for each node, the cost of the longest chain that starts with it; the largest is begun first."""
    longest: dict[str, float] = dict.fromkeys(graph.nodes, 0.0)  # cost of the longest chain after the node
    total: dict[str, float] = {}
    for name, node in reversed(list(graph.nodes.items())):
        cost = registry()[node.kind].cost
        total[name] = longest[name] + (cost(node.config) if callable(cost) else cost)
        for parent in node.parents:
            longest[parent] = max(longest[parent], total[name])
    return total


class _Pool:
    """Workers that live as long as the run, so that each imports the heavy libraries once."""

    def __init__(self, graph: Graph, store: Store, runtime: Runtime, size: int) -> None:
        self.graph, self.store, self.runtime, self.size = graph, store, runtime, size
        self.priority = priorities(graph)
        self.done = {n for n, node in graph.nodes.items() if n not in graph.root.force and store.has(node)}
        self.started: dict[str, float] = dict.fromkeys(self.done, 0.0)
        self.failures: dict[str, Failure] = {}

    def run(self) -> dict[str, Failure]:
        environment = {variable: str(self.runtime.threads) for variable in THREADS}
        if os.environ.get("CONDENSERY_PROGRESS") != "off":
            environment["CONDENSERY_PROGRESS"] = "lines"  # several bars on one terminal would overwrite each other
        root: Path = self.store.folder.parent
        workers: list[Worker] = []
        try:
            while len(workers) < self.size:
                with deaf_to_ctrl_c():
                    workers.append(Worker(root, self.runtime, environment))
            while len(self.done) < len(self.graph.nodes):
                leave_if_asked()
                self._start(workers)
                running = [worker for worker in workers if worker.node]
                if not running:
                    break  # all remaining stages need a stage that failed
                for worker in Worker.wait(running):
                    self._finish(worker)
                for place, worker in enumerate(workers):
                    if worker.process.exitcode is not None and not worker.node:  # the worker died in its stage
                        worker.stop()
                        with deaf_to_ctrl_c():
                            workers[place] = Worker(root, self.runtime, environment)
        finally:
            for worker in workers:
                worker.stop()
        return self.failures

    def _start(self, workers: list[Worker]) -> None:
        for worker in workers:
            ready = self._ready()
            if worker.node is None and ready:
                node = ready[0]
                self.started[node.name] = time.monotonic()
                print(f"[{node.name}] starts", flush=True)
                worker.begin(node, node.name in self.graph.root.force)

    def _ready(self) -> list[Node]:
        nodes: Mapping[str, Node] = self.graph.nodes
        names = [n for n in nodes if n not in self.started and self.done.issuperset(nodes[n].parents)]
        return [nodes[name] for name in sorted(names, key=lambda name: -self.priority[name])]

    def _finish(self, worker: Worker) -> None:
        node, result = worker.end()
        if isinstance(result, Failure):
            self.failures[node.name] = result
        else:
            self.done.add(node.name)
        others = self.graph.nodes.keys() - self.done - causes(self.graph, self.failures).keys()
        report(node, result, time.monotonic() - self.started[node.name], bool(others))
        if not isinstance(result, Failure):
            warn(self.graph, self.store, [node.name])
