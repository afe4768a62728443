"""The tables of a dry run: the finished artifacts, and the cost of the other artifacts.

The work of each stage is estimated from the sizes of artifacts, which are passed along the graph.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from condensery.errors import number_of
from condensery.pipeline.artifact_store import State, Store
from condensery.pipeline.gpu_speeds import seconds_on_gpu
from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.launch.hardware import machine, threads_of_a_stage
from condensery.stages.base import Artifact
from condensery.stages.workload import Sizes, Work
from condensery.system.files import existing

if TYPE_CHECKING:
    from condensery.pipeline.dry_run.machine_speed import Here

UNKNOWN = "?"
WIDTH = 120  # characters of a line if there is no terminal
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


# artifact that is still to be made -> its numbers by column: tokens, FLOPs, disk, time here (``dry_run=true``), time on the
# GPU; None = cannot be known in advance
Costs = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Planned:
    """A stage with the state of its artifact and its work.

    Attributes:
        node: the stage.
        state: state of the artifact: finished, interrupted, or to be made.
        work: estimate of the work.
        waits: missing inputs. An input is left out if another missing input depends on it.
    """

    node: Node
    state: State
    work: Work
    waits: Sequence[str]


def project(graph: Graph, store: Store, states: Mapping[str, State]) -> Costs:
    """Print the stages in the order of computation, with the state of each artifact and the costs of missing artifacts.

    With ``dry_run=plan`` this machine's speed is not measured.
    """
    planned = plan(graph, store, states)
    console = _console()
    console.print(_states(graph, store, planned))
    left = [one for one in planned if one.state != "hit"]
    if not left:
        return {}
    here = _here(graph) if graph.root.dry_run is True else None
    costs = _costs(graph, left, here)
    console.print(_shown(graph, left, costs))
    for line in _notes(graph, store, left, here):
        console.print(line, soft_wrap=True, highlight=False)
    return costs


def announce(graph: Graph, store: Store, states: Mapping[str, State]) -> None:
    """Print how long the missing artifacts will take on this machine."""
    left = {_key(graph, one): one for one in plan(graph, store, states) if one.state != "hit"}
    if not left:
        return
    here = _here(graph)
    seconds = [here.seconds(one.work) for one in left.values()]
    about = f"{'at least' if None in seconds else 'about'} {duration(sum(one or 0.0 for one in seconds))}"
    what = f"{number_of(len(left), 'stages are')} to be made, in {about} on {_named(here)}"
    print(f"{what} (dry_run=true shows each)", flush=True)
    line, too_little = _free_disk(store, left.values())
    if too_little:
        print(line, flush=True)


def project_sweep(jobs: Sequence[Costs]) -> None:
    """Print the total costs of all jobs of a sweep; an artifact that several jobs need counts once."""
    together = {artifact: numbers for job in jobs for artifact, numbers in job.items()}
    if not together:
        return
    table = Table(
        *_columns(together), title=f"{number_of(len(jobs), 'jobs')}; shared stages count once", title_justify="left"
    )
    table.add_row(*_sums(together))
    _console().print("", table)


def _columns(costs: Costs) -> list[str]:
    return list(next(iter(costs.values())))


def _sums(costs: Costs) -> list[str]:
    """Return the sums of the columns as shown; a ``+`` marks a sum that leaves out unknown numbers."""
    columns = {name: [numbers[name] for numbers in costs.values()] for name in _columns(costs)}
    shown = _row({name: sum(value or 0.0 for value in column) for name, column in columns.items()}, False)
    marks = ["+" if None in column and name != "tokens" else "" for name, column in columns.items()]
    return [f"{cell}{mark}" for cell, mark in zip(shown, marks, strict=True)]


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    return console


def _here(graph: Graph) -> "Here":
    from condensery.pipeline.dry_run.machine_speed import this_machine  # imports torch

    trainer = graph.root.trainer
    return this_machine(trainer.accelerator, threads_of_a_stage(trainer.threads, graph.root.jobs))


def _named(here: "Here") -> str:
    return "this GPU" if here.device == "cuda" else f"{machine()['processor']}, {here.cores} of its cores"


def _states(graph: Graph, store: Store, planned: Sequence[Planned]) -> Table:
    title = f"{graph.root.name} in {store.folder}"
    table = Table("stage", "kind", "artifact", "state", title=title, title_justify="left")
    for one in planned:
        table.add_row(one.node.name, one.node.kind, one.node.id or UNKNOWN, _state(one))
    return table


def _state(one: Planned) -> str:
    waits = f"waits for {', '.join(one.waits)}" if one.waits else "to be made"
    return {"hit": "exists", "interrupted": "begun, will resume", "forced": "to be made again"}.get(one.state, waits)


def _costs(graph: Graph, left: Sequence[Planned], here: "Here | None") -> Costs:
    gpu, share = graph.root.dry_run_gpu, graph.root.dry_run_share
    costs: dict[str, dict[str, float | None]] = {}
    for one in left:
        numbers = {"tokens": one.work.tokens, "FLOPs": one.work.flops, "disk": one.work.disk}
        if here:
            numbers["here"] = here.seconds(one.work)
        costs[_key(graph, one)] = {**numbers, gpu: seconds_on_gpu(one.work, gpu, share)}
    return costs


def _key(graph: Graph, one: Planned) -> str:
    """Return the id of a stage's artifact, or the run's id and the stage's name if missing files hide the artifact's id."""
    return one.node.id or f"{graph.id} {one.node.name}"


def _shown(graph: Graph, left: Sequence[Planned], costs: Costs) -> Table:
    table = Table(title="stages to be made", title_justify="left")
    table.add_column("stage")
    for head in ("steps", *_columns(costs)):
        table.add_column(head, justify="right", no_wrap=True)
    for one in left:  # two stages may have the same artifact
        work, numbers = one.work, costs[_key(graph, one)]
        trained = work.step is not None and work.step.trained
        steps = f"{work.steps:,.0f}" if trained and work.steps is not None else "" if work.known else UNKNOWN
        table.add_row(one.node.name, steps, *_row(numbers, work.step is None and work.known))
    table.add_section()
    table.add_row("in all", "", *_sums(costs))
    return table


def _row(numbers: Mapping[str, float | None], without_encoder: bool) -> list[str]:
    tokens, flops, disk, *times = numbers.values()
    first = ["" if without_encoder else number(tokens), "" if flops == 0 else number(flops)]
    return [*first, f"{number(disk)}B" if disk is not None else UNKNOWN, *map(duration, times)]


def number(value: float | None) -> str:
    """Return the number with three digits and a unit prefix, as in 1.23 M; ``?`` if it is unknown."""
    if value is None:
        return UNKNOWN
    size, prefix = next((each for each in _PREFIXES if float(f"{value:.3g}") >= each[0]), (1.0, ""))
    return f"{value / size:.3g} {prefix}"


def duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes or hours, depending on its length."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 3600:,.0f} h"


def _notes(graph: Graph, store: Store, left: Sequence[Planned], here: "Here | None") -> list[str]:
    root = graph.root
    lines = []
    if here:
        lines.append(f"here: {_named(here)}, at the speed of a few steps; stages one by one (jobs={root.jobs})")
    rate = f"{root.dry_run_share:g} of the published rate of dense bf16 products"
    lines.append(f"{root.dry_run_gpu}: one such GPU, at {rate} (dry_run_gpu, dry_run_share)")
    if any(not one.work.known or one.work.disk is None for one in left):
        lines.append(f"{UNKNOWN}: unknown before the run; a sum with + leaves these out")
    if root.published_cost:
        lines.append(f"the paper: {root.published_cost}")
    return [*lines, _free_disk(store, {_key(graph, one): one for one in left}.values())[0]]


def _free_disk(store: Store, left: Iterable[Planned]) -> tuple[str, bool]:
    """Return a line about the free disk space, and whether the artifacts that are to be made need more space."""
    above = existing(store.folder)
    free, needed = shutil.disk_usage(above).free, sum(one.work.disk or 0.0 for one in left)
    line = f"free disk: {number(free)}B at {above}"
    hint = f"; {number(needed)}B are needed, set output_root to a folder on a larger disk"
    return (f"{line}{hint}", True) if needed > free else (line, False)


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
    """Return the sizes of a finished artifact, or the expected sizes if an older manifest lacks them."""
    try:
        return node.config.actual_sizes(work.makes, Artifact(store.path(node)).manifest["metrics"])
    except (KeyError, TypeError):
        return work.makes
