"""Builds the graph of a recipe: each node is a stage with a checked config, known inputs and an artifact id."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from condensery.errors import OF_YOUR_OWN, MissingDataError, UserError, check_known, close_to, listed, message_within
from condensery.pipeline.artifact_id import artifact_id, digest
from condensery.pipeline.config import RootConfig
from condensery.pipeline.config_check import Place, base_of, checked, follow, needs_value
from condensery.pipeline.figure_config import check as check_figure
from condensery.recipes import ADDED_FIRST, RUN_LENGTHS
from condensery.stages.base import StageConfig, references
from condensery.stages.checks import missing_split
from condensery.stages.registry import Stage, registry
from condensery.stages.trainer_options import idle_callback
from condensery.system.processor import quick_precision

MEASURED = {"rows", "baseline", "metrics", "split"}  # keys of a table on which the run's id depends


@dataclass(frozen=True)
class Node:
    """One stage of a recipe.

    Attributes:
        name: name of the stage in the recipe.
        kind: kind of the stage.
        config: the checked config.
        inputs: field of the config -> names of the nodes that the field reads.
        made_from: field of the config -> references ``kind/id`` of the artifacts of these nodes.
        id: id of the artifact; empty if it is unknown.
    """

    name: str
    kind: str
    config: StageConfig
    inputs: Mapping[str, tuple[str, ...]]
    made_from: Mapping[str, tuple[str, ...]]  # field -> "kind/id"
    id: str

    @property
    def reference(self) -> str:
        """The path of the artifact in the store, ``kind/id``."""
        return f"{self.kind}/{self.id}"

    def present_id(self, version: int) -> str:
        """Return the id of the artifact that a stage of this ``version`` makes from the present content of its files."""
        return artifact_id(self.kind, version, self.config.identified_by(self.made_from))

    @property
    def parents(self) -> list[str]:
        """The names of all nodes that this node reads."""
        return [name for names in self.inputs.values() for name in names]


@dataclass(frozen=True)
class Graph:
    """A whole recipe.

    Attributes:
        root: config of the root.
        nodes: the stages by name, in topological order.
        rows: label of each row of the table -> name of the node that evaluates the row.
        answers: name of the node whose index ``ask`` searches if the recipe has no rows.
        missing: in a dry run, the error about a missing input file whose sizes are known. The dry run then continues.
            Artifacts that depend on the file have no id.
        unmeasured: row -> node of its index. Filled only if the table should recommend a row (``table.recommend``), but is
            left out because judgements are missing.
        choice: a sentence that says which of several checkpoints the run continues with (``pipeline.several_checkpoints``).
    """

    root: RootConfig
    nodes: Mapping[str, Node]
    rows: Mapping[str, str]
    answers: str | None = None
    missing: str = ""
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    choice: str = ""

    @property
    def id(self) -> str:
        """The id of the run, 8 hexadecimal digits: the same for every run with the same artifacts and table."""
        table = self.root.table.model_dump(include=MEASURED)
        return digest([[n.name, n.reference] for n in self.nodes.values()] + [table], 4)


def build(cfg: DictConfig) -> Graph:
    """Check the composed config and build the graph.

    Raises:
        UserError: in one line, about any fault of the config.
    """
    return _Builder(cfg).graph()


class _Builder:
    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = pickle.loads(pickle.dumps(cfg))  # a copy in half the time of deepcopy
        OmegaConf.set_struct(self.cfg, False)
        if OmegaConf.select(self.cfg, "trainer.precision") == "auto":
            # stages, and so artifact ids, get the actual precision in place of auto
            self.cfg.trainer.precision = quick_precision(str(self.cfg.trainer.accelerator))
        self.raw: dict[str, Any] = OmegaConf.to_container(self.cfg)  # type: ignore[assignment]
        self.stages = registry()
        self.nodes: dict[str, Node] = {}
        self.overrides: dict[str, dict[str, Any]] = {}  # node name -> settings of this node alone

    def graph(self) -> Graph:
        resolved = {key: self._resolved(key) if key not in ("stage", "stages") else self.raw[key] for key in self.raw}
        root = checked(RootConfig, resolved, lambda place: follow(self.raw, (), place))
        self._check_defaults(root)
        self.overrides = {
            name: {"stage": name, **settings} if name in ADDED_FIRST else dict(settings)
            for name, settings in root.stages.items()
        }
        for name in list(self.overrides):
            self._add(name, ())
        if idle := idle_callback(node.config for node in self.nodes.values()):
            raise UserError(f"trainer.callbacks.{idle}: acts at validations, but no stage has one; set validate_every")
        configs = [node.config for node in self.nodes.values()]
        unjudged = root.table.optional and any(missing_split(root.table.split, [config]) for config in configs)
        shown = bool(root.stages) and not unjudged
        rows = self._rows_as("evaluation", root) if shown else {}  # without stages only a table is printed
        unmeasured = self._rows_as("index", root) if root.stages and root.table.recommend and not shown else {}
        answers = self._that_answers() if root.ask is not None and self.nodes and not rows else None
        for name, figure in root.figures.items():
            kinds = {stage: node.kind for stage, node in self.nodes.items()}
            check_figure(name, figure, kinds, root.table.rows, root.table.metrics)
        if root.table.choose:
            group, name, key, *_ = root.table.choose.key.split(".")
            known_keys = dict(root.stage.get(name, {}) if group == "stage" else root.stages.get(name, {}))
            known_keys |= root.stage.get(str(known_keys.get("stage")), {}) if group == "stages" else {}
            check_known(key, known_keys, f"table.choose.key: the recipe has no key {group}.{name}.{key}")
        for name in root.force:
            check_known(name, self.nodes, f"force: no stage is named {name!r}")
        self._begin_with_added(root)
        known, missing = self._identify(bool(root.dry_run))
        return Graph(root, known, rows, answers, missing, unmeasured)

    def _rows_as(self, product: str, root: RootConfig) -> dict[str, str]:
        """Return, for each row of the table, the node that makes ``product`` from the row's retriever."""
        key = "table.rows.{}".format
        return {label: self._made(name, product, partial(key, label)) for label, name in root.table.rows.items()}

    def _that_answers(self) -> str:
        """Return the index that ``ask`` searches if no table determines the best row.

        It is the last fused index of the recipe. If the recipe fuses nothing, it is the last index. If the recipe has no
        index, it is the index of the last encoder, and the stage that builds this index is added.

        Raises:
            UserError: the recipe makes neither an index nor an encoder.
        """
        products = {name: self.stages[node.kind].makes for name, node in self.nodes.items()}
        indexes = [name for name in products if products[name] == "index"]
        joined = [name for name in indexes if self.nodes[name].kind == "fuse"]
        encoders = [name for name in products if products[name] == "encoder"]
        if not (indexes or encoders):
            raise UserError("ask: this recipe makes neither a table nor an index nor an encoder that could answer")
        return self._made((joined or indexes or encoders)[-1], "index", lambda: "ask")

    def _made(self, name: str, product: str, key: Callable[[], str]) -> str:
        """Add the node that makes ``product`` from the stage ``name``; return the node's name. ``key``: see ``_adapted``."""
        made = self._adapted(name, product, key)
        self._add(made, ())
        return made

    def _check_defaults(self, root: RootConfig) -> None:
        for kind, defaults in root.stage.items():
            if kind not in self.stages:
                raise UserError(f"stage.{kind}: unknown kind of stage{self._kinds_near(kind)}")
            for key in defaults:
                check_known(key, self.stages[kind].config.model_fields, f"stage.{kind}.{key}: unknown key")

    def _add(self, name: str, path: tuple[str, ...]) -> None:
        """Add a node, after the nodes that it reads; ``path`` is the chain of nodes that read it.

        Raises:
            UserError: the stages read each other in a cycle, or the config has a fault.
        """
        if name in path:
            cycle = " -> ".join([*path[path.index(name) :], name])
            raise UserError(f"stages.{path[-1]}: the stages read each other in a circle: {cycle}")
        if name not in self.nodes:
            kind = self._kind(name)
            config = self._config(name, kind)
            inputs = self._inputs(name, config)
            for parent in (parent for names in inputs.values() for parent in names):
                self._add(parent, (*path, name))
            read = {field: [self.nodes[n].config for n in names] for field, names in inputs.items()}
            if error := config.input_error(read):
                raise UserError(f"{self._written(name, error[:1])}: {error[1]}")
            self.nodes[name] = Node(name, kind, config, inputs, {}, "")

    def _begin_with_added(self, root: RootConfig) -> None:
        """Put the automatically added stages of ``ADDED_FIRST`` first, as in recipes that list these stages themselves."""
        first: dict[str, Node] = {}
        for name in ADDED_FIRST:
            if name in self.nodes and name not in root.stages and first.keys() >= set(self.nodes[name].parents):
                first[name] = self.nodes[name]
        self.nodes = first | self.nodes

    def _identify(self, dry: bool) -> tuple[dict[str, Node], str]:
        """Return the nodes with their ids, and ``Graph.missing``.

        This step is the last, because ids depend on the content of files, and faults of the config are reported first.

        Args:
            dry: whether the run is a dry run. A dry run returns the error about a missing input of known size instead of
                raising it.

        Raises:
            UserError: an input is missing.
        """
        known: dict[str, Node] = {}
        missing = ""
        for name, node in self.nodes.items():
            made_from = {field: tuple(known[n].reference for n in names) for field, names in node.inputs.items()}
            known[name] = node = replace(node, made_from=made_from)
            if not all(known[parent].id for parent in node.parents):
                continue
            try:
                known[name] = replace(node, id=node.present_id(self.stages[node.kind].version))
            except UserError as error:
                if not (dry and node.config.work({}).makes.collection.published):
                    if isinstance(error, MissingDataError):
                        raise
                    raise UserError(self._of_own_backbone(name, str(error))) from None
                missing = str(error)
        return known, missing

    def _of_own_backbone(self, name: str, message: str) -> str:
        """Return an error message about ``backbone``, with the stage's own key if the stage has its own backbone."""
        key, separator, rest = message.partition(": ")
        group, _, field = key.partition(".")
        if group != "backbone" or field not in (self.overrides[name].get("backbone") or {}):
            return message
        return f"{self._written(name, (group, field))}{separator}{rest}"

    def _kind(self, name: str) -> str:
        kind = self.overrides[name].get("stage")
        if kind is None:
            named = close_to(name, (other for other, given in self.overrides.items() if given.get("stage")))
            raise UserError(
                f"stages.{name}: not a stage of the recipe{named}; for a new stage, set stages.{name}.stage to one of"
                f" {listed(self.stages, name)}"
            )
        if not isinstance(kind, str) or kind not in self.stages:
            raise UserError(f"stages.{name}.stage: unknown kind of stage {kind!r}{self._kinds_near(str(kind))}")
        return str(kind)

    def _kinds_near(self, kind: str) -> str:
        hint = close_to(kind, self.stages)
        return hint if "did you mean" in hint or "is called" in hint else f"{OF_YOUR_OWN}{hint}"

    def _config(self, name: str, kind: str) -> StageConfig:
        """Return the config of a node: the kind's defaults, overridden by the node's settings, with references resolved."""
        settings = {key: value for key, value in self.overrides[name].items() if key != "stage"}
        defaults = dict(self.raw["stage"].get(kind) or {})
        if any(settings.get(key) is not None for key in RUN_LENGTHS):
            defaults |= {key: None for key in RUN_LENGTHS if key in defaults}
        merged = {key: value for key, value in settings.items() if _needs_merging(value, defaults.get(key))}
        self.cfg.stages[name] = {**defaults, **{key: settings[key] for key in settings if key not in merged}}
        for key, value in merged.items():  # OmegaConf merges into the value of a reference: ${backbone} and {layers: 2}
            try:
                self.cfg.stages[name].merge_with({key: value})
            except OmegaConfBaseException:
                raise UserError(f"stages.{name}.{key}: is a list where a mapping is needed, or the reverse") from None
        return checked(self.stages[kind].config, self._resolved("stages", name), partial(self._written, name))

    def _written(self, name: str, place: Place) -> str:
        settings, kind = self.overrides[name], self.overrides[name]["stage"]
        defaults = self.raw["stage"].get(kind) or {}
        if place and place[0] not in settings and defaults.get(place[0], "???") != "???":
            return follow(self.raw, ("stage", kind), place)
        return follow(self.raw, ("stages", name), place, settings)

    def _inputs(self, name: str, config: StageConfig) -> dict[str, tuple[str, ...]]:
        inputs = {}
        for reads, wanted in references(type(config)).items():
            value = getattr(config, reads)
            words = value if isinstance(value, list | tuple) else [] if value is None else [value]
            for word in wanted.literal:
                if word in words and word in self.overrides:
                    raise UserError(f"stages.{word}: {self._written(name, (reads,))} reserves this name; rename it")
            key = partial(self._written, name, (reads,))
            inputs[reads] = tuple(self._adapted(w, wanted.product, key) for w in words if w not in wanted.literal)
        return inputs

    def _adapted(self, name: str, wanted: str, key: Callable[[], str]) -> str:
        """Return the node that makes ``wanted`` from ``name``: the stage itself, or a stage that is added after it.

        Args:
            name: stage that a recipe names.
            wanted: product that is needed.
            key: function that returns the key that names the stage, for error messages.

        Raises:
            UserError: there is no such stage, or no kind of stage makes ``wanted`` from the product of this stage.
        """
        if name in ADDED_FIRST and name not in self.raw["stages"]:
            self.overrides.setdefault(name, {"stage": name})
        if name not in self.overrides:
            own = [n for n, settings in self.overrides.items() if "stage" in settings]
            raise UserError(f"{key()}: no stage is named {name!r}{base_of(key()) or close_to(name, own)}")
        product = self.stages[self._kind(name)].makes
        if product == wanted:
            return name
        adapter = self._adapter(product, wanted)
        if adapter is None:
            raise UserError(f"{key()}: the stage {name!r} makes {product}, but {wanted} is needed here")
        added = f"{name}.{wanted}"
        self.overrides[added] = {"stage": adapter.kind, str(adapter.adapts): name, **self._shared_inputs(name, adapter)}
        return added

    def _shared_inputs(self, name: str, adapter: Stage) -> dict[str, Any]:
        """Return the inputs that an added stage shares with the stage ``name`` under the same keys, such as tokens."""
        kind = self._kind(name)
        settings = {**(self.raw["stage"].get(kind) or {}), **self.overrides[name]}
        own, read = references(self.stages[kind].config), references(adapter.config)
        shared = [key for key in read if key != adapter.adapts and key in own and own[key].product == read[key].product]
        return {key: settings[key] for key in shared if settings.get(key) is not None}

    def _adapter(self, product: str, wanted: str) -> Stage | None:
        """Return a kind of stage that makes ``wanted`` from ``product``, directly or through others; None if none does."""
        for kind in self.raw["stage"]:
            candidate = self.stages[kind]
            if candidate.makes == wanted and candidate.adapts:
                reads = references(candidate.config)[candidate.adapts].product
                if reads == product or self._adapter(product, reads):
                    return candidate
        return None

    def _resolved(self, *keys: str) -> Any:
        node: Any = self.cfg
        try:
            for key in keys[:-1]:
                node = node[key]
            if OmegaConf.is_missing(node, keys[-1]):
                return "???"
            value = node[keys[-1]]
            return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException as error:
            text = str(error.msg or error).split("\n")[0]
            if missing := text.partition("Missing mandatory value: ")[2]:
                raise needs_value(missing) from None
            raise UserError(f"{error.full_key or '.'.join(keys)}: {message_within(error) or text}") from None


def _needs_merging(value: Any, default: Any) -> bool:
    """Whether a value must be merged with the default instead of replacing it.

    A stage's own ``data`` that names a format is complete, and replaces the recipe's ``data``.
    """
    if isinstance(value, dict) and "format" in value:
        return False
    return value == "???" or isinstance(value, dict | list) or isinstance(default, dict | list)


def can_answer(graph: Graph) -> bool:
    """Whether ``ask`` can search: the rows are retrievers, or a recipe without rows makes an index or an encoder."""
    if graph.rows:
        return all("index" in graph.nodes[name].inputs for name in graph.rows.values())
    return any(registry()[node.kind].makes in ("index", "encoder") for node in graph.nodes.values())
