"""The work of each stage of a recipe, estimated from the sizes of artifacts, which are passed along the graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.store import State, Store
from condensery.stages.base import Artifact
from condensery.stages.workload import Sizes, Work


@dataclass(frozen=True)
class Planned:
    """A stage with the state of its artifact and its work.

    Attributes:
        node: the stage.
        state: state of the artifact: finished, interrupted, or to be made.
        work: estimate of the work.
        waits: missing inputs, except those that another missing input depends on.
    """

    node: Node
    state: State
    work: Work
    waits: Sequence[str]


def plan(graph: Graph, store: Store, states: Mapping[str, State]) -> list[Planned]:
    """Return all stages in the order in which they are computed."""
    sizes: dict[str, Sizes] = {}
    above: dict[str, set[str]] = {}  # all stages that a stage depends on, directly or not
    planned = []
    for name, node in graph.nodes.items():
        work = node.config.work({field: [sizes[parent] for parent in names] for field, names in node.inputs.items()})
        sizes[name] = _actual_sizes(store, node, work) if states[name] == "hit" else work.makes
        above[name] = set(node.parents).union(*(above[parent] for parent in node.parents))
        missing = [parent for parent in dict.fromkeys(node.parents) if states[parent] != "hit"]
        waits = [parent for parent in missing if not any(parent in above[other] for other in missing)]
        planned.append(Planned(node, states[name], work, waits))
    return planned


def _actual_sizes(store: Store, node: Node, work: Work) -> Sizes:
    """Return the sizes of a finished artifact, or the expected sizes where an older manifest lacks them."""
    try:
        return node.config.actual_sizes(work.makes, Artifact(store.path(node)).manifest["metrics"])
    except (KeyError, TypeError):
        return work.makes
