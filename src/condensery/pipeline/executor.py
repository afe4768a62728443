"""Runs a graph: one stage after the other in this process, or several side by side in workers of their own."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.store import Store
from condensery.pipeline.workers import Failure, Worker
from condensery.progress import clock
from condensery.stages.base import Runtime, registry

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ASKED = os.environ.get("OMP_NUM_THREADS", "")


def threads_of_a_stage(threads: int | str, jobs: int) -> int:
    """How many threads each stage gets: as asked, or the cores shared among ``jobs`` (at most ``OMP_NUM_THREADS``)."""
    if isinstance(threads, int):
        return threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // jobs)
    return min(share, int(_ASKED)) if _ASKED.isdigit() and int(_ASKED) else share


def limit_threads(threads: int) -> None:
    """Give the numeric libraries of this process ``threads`` threads, whether or not they are imported yet."""
    for variable in THREADS:
        os.environ[variable] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def execute(graph: Graph, store: Store, runtime: Runtime) -> None:
    """Make every artifact of the graph.

    Raises the ``UserError`` or the exception of the first stage that fails; with several jobs the stages that run at
    that moment come to their end first.
    """
    states = store.states(graph)
    reused = sum(state == "hit" for state in states.values())
    print(f"{len(states)} stages, {reused} of them reused from {store.folder}", flush=True)
    if graph.root.jobs == 1:
        _in_this_process(graph, store, runtime)
    elif reused < len(states):
        _Pool(graph, store, runtime, min(graph.root.jobs, len(states) - reused)).run()


def _in_this_process(graph: Graph, store: Store, runtime: Runtime) -> None:
    limit_threads(runtime.threads)
    for node in graph.nodes.values():
        force = node.name in graph.root.force
        if not force and store.has(node):
            continue
        print(f"[{node.name}] starts", flush=True)
        started = time.monotonic()
        try:
            computed = store.ensure(node, runtime, force)
        except Exception as error:
            error.add_note(f"(in the stage {node.name}; its work so far is kept in {store.partial(node)})")
            raise
        report(node, computed, time.monotonic() - started)


def report(node: Node, computed: bool, seconds: float) -> None:
    """One line: a stage is done."""
    print(f"[{node.name}] " + (f"done in {clock(seconds)}" if computed else "computed by another process"), flush=True)


def priorities(graph: Graph) -> dict[str, float]:
    """For each node the cost of the longest chain that starts with it: what to begin first."""
    longest: dict[str, float] = dict.fromkeys(graph.nodes, 0.0)  # of what comes after the node
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
        self.failures: list[Failure] = []

    def run(self) -> None:
        environment = {variable: str(self.runtime.threads) for variable in THREADS}
        if os.environ.get("CONDENSERY_PROGRESS") != "off":
            environment["CONDENSERY_PROGRESS"] = "lines"  # several bars on one terminal would overwrite each other
        root: Path = self.store.folder.parent
        workers = [Worker(root, self.runtime, environment) for _ in range(self.size)]
        try:
            while len(self.done) < len(self.graph.nodes):
                self._start(workers)
                running = [worker for worker in workers if worker.node]
                if not running:
                    break  # after a failure nothing is left that may start
                for worker in Worker.wait(running):
                    self._finish(worker)
        finally:
            for worker in workers:
                worker.stop()
        if self.failures:
            raise self.failures[0].error

    def _start(self, workers: list[Worker]) -> None:
        for worker in workers:
            ready = [] if self.failures else self._ready()
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
            if not self.failures and any(w != node.name for w in self.started if w not in self.done):
                print(f"[{node.name}] failed; the stages that run now come to their end first", flush=True)
            elif self.failures:
                print(f"[{node.name}] failed as well: {result.error}", flush=True)
            self.failures.append(result)
            self.started[node.name] = 0.0
        else:
            self.done.add(node.name)
            report(node, result, time.monotonic() - self.started[node.name])
