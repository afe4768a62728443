"""What each stage of a recipe will have to do: the sizes of artifacts, followed along the graph."""

from collections.abc import Mapping
from dataclasses import dataclass

from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.store import State, Store
from condensery.stages.workload import Sizes, Work


@dataclass(frozen=True)
class Planned:
    """A stage, whether its artifact is there, and its work; ``waits`` names the stages that come first."""

    node: Node
    state: State
    work: Work
    waits: tuple[str, ...]


def plan(graph: Graph, store: Store) -> list[Planned]:
    """All stages in the order of their work."""
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
    """What it reads that is not there, but for that which others of these wait for themselves."""
    missing = dict.fromkeys(parent for parent in node.parents if states[parent] != "hit")
    before = {above for parent in missing for above in _above(graph, parent)}
    return tuple(parent for parent in missing if parent not in before)


def _above(graph: Graph, name: str) -> set[str]:
    """All that a stage is made from."""
    parents = graph.nodes[name].parents
    return {*parents, *(above for parent in parents for above in _above(graph, parent))}


def _actual_sizes(store: Store, node: Node, work: Work) -> Sizes:
    """The sizes of an artifact that is there; as they were expected where an older manifest does not say them."""
    try:
        return node.config.actual_sizes(work.makes, store.artifact(node).manifest["metrics"])
    except (KeyError, TypeError):
        return work.makes
