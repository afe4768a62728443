"""The work of each stage of a recipe, from the sizes of artifacts, which pass along the graph."""

from collections.abc import Mapping
from dataclasses import dataclass

from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.store import State, Store
from condensery.stages.workload import Sizes, Work


@dataclass(frozen=True)
class Planned:
    """A stage with the state of its artifact and its work.

    Attributes:
        node: the stage.
        state: whether the artifact is there, interrupted, or to be made.
        work: the estimate of the work.
        waits: the stages that must come first.
    """

    node: Node
    state: State
    work: Work
    waits: tuple[str, ...]


def plan(graph: Graph, store: Store) -> list[Planned]:
    """Return all stages in the order in which they are computed."""
    states = store.states(graph)
    sizes: dict[str, Sizes] = {}
    planned = []
    for name, node in graph.nodes.items():
        work = node.config.work({field: [sizes[parent] for parent in names] for field, names in node.inputs.items()})
        there = states[name] == "hit"
        sizes[name] = _actual_sizes(store, node, work) if there else work.makes
        planned.append(Planned(node, states[name], work, () if there else _waits(graph, node, states)))
    return planned


def _waits(graph: Graph, node: Node, states: Mapping[str, State]) -> tuple[str, ...]:
    """Return the missing inputs of a stage, without those that another missing input waits for itself."""
    missing = dict.fromkeys(parent for parent in node.parents if states[parent] != "hit")
    before = {above for parent in missing for above in _above(graph, parent)}
    return tuple(parent for parent in missing if parent not in before)


def _above(graph: Graph, name: str) -> set[str]:
    """Return the names of all stages that a stage is made from, directly or not."""
    parents = graph.nodes[name].parents
    return {*parents, *(above for parent in parents for above in _above(graph, parent))}


def _actual_sizes(store: Store, node: Node, work: Work) -> Sizes:
    """Return the sizes of a finished artifact; the expected ones where an older manifest lacks them."""
    try:
        return node.config.actual_sizes(work.makes, store.artifact(node).manifest["metrics"])
    except (KeyError, TypeError):
        return work.makes
