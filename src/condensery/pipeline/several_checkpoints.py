"""Several checkpoints in one run, ``backbone.name=[A,B]``: each has its own rows, and the run continues with the best.

Each checkpoint has its own tokenizer, and so its own token ids. Therefore the recipe is composed separately for each
checkpoint. The joint graph has the whole recipe of the chosen checkpoint. For every other checkpoint it has only the stages
that measure the checkpoint and evaluate its rows. A checkpoint's artifacts are those of a run with this checkpoint alone.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from condensery.errors import UserError, check_known, number_of
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.config import ChooseConfig
from condensery.pipeline.graph import Graph, Node, build
from condensery.reporting.plain import one_line
from condensery.stages.base import Artifact
from condensery.system.files import expanded

KEY = "backbone.name"


@dataclass(frozen=True)
class Starts:
    """The checkpoints of a run. The methods need several checkpoints. The graph of a single checkpoint is ``graphs[0]``.

    Attributes:
        labels: name of each checkpoint in rows of the table.
        configs: composed config of each checkpoint.
        graphs: graph of the whole recipe for each checkpoint.
    """

    labels: Sequence[str]
    configs: Sequence[DictConfig]
    graphs: Sequence[Graph]

    def chosen(self, store: Store) -> int | None:
        """Return the index of the chosen checkpoint: the best by ``choose``, or the first of several that are equally good.

        The result is None until all checkpoints are measured.
        """
        if any(state != "hit" for state in store.states(self.before()).values()):
            return None
        values = [found["MRR@10"] for found in self._found(store)]
        return values.index(max(values))

    def before(self) -> Graph:
        """Return the graph of the stages that must be finished before a checkpoint can be chosen."""
        first, *others = self.graphs
        common = {
            name: node
            for name, node in first.nodes.items()
            if all(_same(node, graph.nodes.get(name)) for graph in others)
        }
        nodes = {name: node for name, node in common.items() if name in self._needed(0)}
        forced = [name for name in first.root.force if name in nodes]
        for at in range(len(self.graphs)):
            beside, names = self._beside(common, at)
            nodes |= beside
            forced += [names[name] for name in first.root.force if names.get(name) in beside]
        return Graph(first.root.model_copy(update={"force": forced}), nodes, {})

    def once_made(self) -> "Starts":
        """Return a copy for use after the stages of ``before`` are finished.

        The copy's key ``force`` does not name these stages. Otherwise the run would compute them a second time.
        """
        made = {name for at in range(len(self.graphs)) for name in self._needed(at)}
        forced = {"force": [name for name in self.graphs[0].root.force if name not in made]}
        graphs = [replace(graph, root=graph.root.model_copy(update=forced)) for graph in self.graphs]
        return replace(self, graphs=graphs)

    def config_of(self, graph: Graph) -> DictConfig:
        """Return the config of the checkpoint with which a joint graph continues."""
        at = next(at for at, own in enumerate(self.graphs) if own.root.backbone == graph.root.backbone)
        return self.configs[at]

    def graph(self, store: Store) -> Graph:
        """Return the joint graph: the whole recipe of the chosen checkpoint, or of the first one until one is chosen.

        For every other checkpoint the graph has only the stages that measure the checkpoint and evaluate its rows.
        """
        chosen = self.chosen(store)
        at = chosen or 0
        first = self.graphs[at]
        nodes, rows, stages = dict(first.nodes), dict[str, str](), dict[str, str]()
        named: list[dict[str, str]] = [{} for _ in self.graphs]
        for other in range(len(self.graphs)):
            if other != at:
                beside, named[other] = self._beside(first.nodes, other)
                nodes |= beside
        for row, stage in first.root.table.rows.items():
            for place in range(len(self.graphs)) if row in _choose(first).rows else [at]:
                label = self._label(row, place)
                stages[label] = stage
                if row in first.rows:
                    own = self.graphs[place].rows[row]
                    rows[label] = named[place].get(own, own)
        baseline = first.root.table.baseline
        table = {"rows": stages, "baseline": baseline and self._label(baseline, at)}
        root = first.root.model_copy(update={"table": first.root.table.model_copy(update=table)})
        unmeasured = {self._label(row, at): name for row, name in first.unmeasured.items()}
        message = "" if chosen is None else self._message(at, store)
        return replace(first, root=root, nodes=nodes, rows=rows, unmeasured=unmeasured, choice=message)

    def _label(self, row: str, at: int) -> str:
        """Return the label of a row; a row that every checkpoint has is marked with the checkpoint's name."""
        return f"{row}: {self.labels[at]}" if row in _choose(self.graphs[at]).rows else row

    def _needed(self, at: int) -> list[str]:
        """Return the nodes that a checkpoint's measurement and rows need, in topological order."""
        graph = self.graphs[at]
        wanted = {_choose(graph).by, *(graph.rows[row] for row in _choose(graph).rows if row in graph.rows)}
        for name in reversed(list(graph.nodes)):  # each node before its inputs
            if name in wanted:
                wanted |= set(graph.nodes[name].parents)
        return [name for name in graph.nodes if name in wanted]

    def _beside(self, others: Mapping[str, Node], at: int) -> tuple[dict[str, Node], dict[str, str]]:
        """Return the nodes that a checkpoint needs and that are not in ``others``, renamed to ``NAME.2`` and so on.

        Also return the new name of each node by its old name.
        """
        nodes, names = dict[str, Node](), dict[str, str]()
        for name in self._needed(at):
            node = self.graphs[at].nodes[name]
            names[name] = name
            if not _same(node, others.get(name)):
                names[name] = f"{name}.{at + 1}"
                inputs = {field: tuple(names[one] for one in read) for field, read in node.inputs.items()}
                nodes[names[name]] = replace(node, name=names[name], inputs=inputs)
        return nodes, names

    def _found(self, store: Store) -> list[dict[str, Any]]:
        """Return the metrics of each checkpoint on the queries by which a checkpoint is chosen."""
        return [Artifact(store.path(graph.nodes[_choose(graph).by])).manifest["metrics"] for graph in self.graphs]

    def _message(self, at: int, store: Store) -> str:
        """Return a line with the results that decided which checkpoint was chosen."""
        found, label = self._found(store), self.labels[at]
        if found[at]["by"] is None:
            return f"There are no queries to choose {' or '.join(self.labels)} by: {label}, the first, is used."
        values = ", ".join(f"{name} {100 * one['MRR@10']:.1f}" for name, one in zip(self.labels, found, strict=True))
        return f"MRR@10 of {number_of(found[at]['queries'], found[at]['by'])}: {values}. {label} is used."


def read(cfg: DictConfig) -> Starts:
    """Build the graph of a composed config, or one graph for each of its checkpoints.

    Raises:
        UserError: the config has a fault. Examples are a checkpoint that is given twice, or several checkpoints for a recipe
            that takes only one.
    """
    given = OmegaConf.select(cfg, KEY, throw_on_missing=False)
    names = list(given) if isinstance(given, ListConfig) else [given]
    if isinstance(given, ListConfig):
        _check(names)
    names = [(name.rstrip("/") or name) if isinstance(name, str) else name for name in names]  # A/ is A
    by = OmegaConf.select(cfg, "choose.by")
    if len(names) > 1 and by is None:
        shown = ",".join(map(str, names))
        raise UserError(f"{KEY}: this recipe takes one checkpoint; for a run of each and one table: {KEY}={shown} -m")
    configs = [_of_one(cfg, name if name != given else None, by, len(names)) for name in names]
    starts = Starts(short_names(names) if len(names) > 1 else [""], configs, [build(one) for one in configs])
    if len(names) > 1:
        _check_choice(starts.graphs[0])
    return starts


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of each path or hub name, or as many parts as make the names distinct."""
    parts = [[part for part in str(name).split("/") if part not in ("", ".")] or [str(name)] for name in names]
    for number in range(1, max(map(len, parts)) + 1):
        short = [one_line("/".join(own[-number:])) for own in parts]
        if len(set(short)) == len(short):
            return short
    return [one_line(str(name)) for name in names]


def _of_one(cfg: DictConfig, name: str | None, by: str | None, number: int) -> DictConfig:
    """Return the config with one checkpoint.

    Args:
        cfg: composed config.
        name: name of the checkpoint; None = the checkpoint that the config names.
        by: name of the stage that measures checkpoints; None = there is no such stage. With one checkpoint, the stage is left
            out.
        number: number of checkpoints in the run.
    """
    if name is None and by is None:
        return cfg
    own = deepcopy(cfg)
    OmegaConf.set_struct(own, False)
    if name is not None:
        OmegaConf.update(own, KEY, name)
    if number == 1 and by is not None:
        own.stages[by] = None
    if number > 1 and OmegaConf.is_list(own.get("force")):  # forcing X.2 forces X for each checkpoint
        own.force = [re.sub(rf"\.[1-{number}]$", "", str(one)) for one in own.force]
    return own


def _check(names: Sequence[object]) -> None:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{KEY}: must be a list of folders and hub names, got {list(names)}")
    places: dict[str, str] = {}
    for name in map(str, names):
        folder = expanded(name)
        place = str(folder.resolve()) if folder.is_dir() else name.rstrip("/")
        if place in places:
            raise UserError(f"{KEY}: {places[place]} and {name} are the same checkpoint; name each once")
        places[place] = name


def _check_choice(graph: Graph) -> None:
    choose = _choose(graph)
    validating = [name for name, node in graph.nodes.items() if node.kind == "validate"]
    check_known(choose.by, validating, f"choose.by: {choose.by!r} is not a stage of kind validate")
    for row in choose.rows:
        check_known(row, graph.root.table.rows, f"choose.rows: {row!r} is not a row of the table")


def _choose(graph: Graph) -> ChooseConfig:
    assert graph.root.choose is not None, "`read` saw to it"
    return graph.root.choose


def _same(node: Node, other: Node | None) -> bool:
    """Whether two nodes have the same artifact."""
    return other is not None and bool(node.id) and (node.kind, node.id) == (other.kind, other.id)
