"""Shared types of all stages: the base of the configs, the artifacts, and the settings of this machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from condensery.errors import UserError
from condensery.keys import Keys, NumberKeys, Text
from condensery.ranges import no_room
from condensery.sharing import ShardTask
from condensery.stages.launcher_config import Launcher, LocalLauncher
from condensery.stages.workload import Read, Sizes, Work
from condensery.system.files import expanded, inside, read_json
from condensery.text.languages import check_code

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # of stages, figures, callbacks; dots are reserved for automatically added stages
Name = Annotated[str, Field(pattern=NAME, max_length=100)]
Mark = TypeVar("Mark")


def _without_null(value: Any) -> Any:
    """Drop entries that are null: a recipe removes an inherited entry by setting it to null."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _with_room(length: int, info: ValidationInfo) -> int:
    """Refuse a length of pairs in which a query of ``query_length`` leaves no room for a passage."""
    if "query_length" in info.data and (wrong := no_room(info.data["query_length"], length)):
        raise ValueError(wrong)
    return length


LeaveOut = BeforeValidator(_without_null)


@dataclass(frozen=True)
class Input:
    """Marks a field that names other stages, whose artifacts the stage reads.

    The field's type is ``str`` or ``list[str]``, with or without ``| None``.

    Attributes:
        product: the product that the named stages must make.
        literal: reserved words that name no stage, such as ``backbone``; they stay in the config.
    """

    product: str
    literal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operational:
    """Marks a field that cannot change the result, such as the number of workers. The artifact id does not depend on it."""


@dataclass(frozen=True)
class Later:
    """Marks a field that was added to a kind of stage after artifacts of that kind existed.

    The artifact id depends on the field only if its value differs from the default. If the field names stages, the id then
    depends on their artifacts too. So stages that do not use the field keep their ids.
    """


@dataclass(frozen=True)
class FromRecipe:
    """Marks a field whose default is the value of another key of the recipe, as ``${place}`` interpolates it.

    Attributes:
        place: path of the other key from the root of the recipe, such as ``trainer.precision``. ``.key`` is a key of the
            same stage.
    """

    place: str


NamedFile = Annotated[Path, AfterValidator(expanded)]  # a file that the user names; ~ is the home folder
Seed = Annotated[int, Ge(0), FromRecipe("seed")]
SentenceLanguage = Annotated[str, AfterValidator(check_code), FromRecipe("sentence_language"), Later()]
TextLength = Annotated[int, Ge(4)]  # maximum tokens of a query or passage, including [CLS] and [SEP]
RowLength = Annotated[int, Ge(8)]  # maximum tokens of a pre-training text
PairLength = Annotated[int, Ge(8), AfterValidator(_with_room)]  # maximum tokens of a query and a passage in one input
Precision = Annotated[Literal["fp32", "bf16", "fp16"], FromRecipe("trainer.precision")]


class StageConfig(NumberKeys):
    """Base of all stage configs; a config is frozen and allows no further keys.

    A field's explanation is the docstring below the field. ``make conf`` writes ``conf/stage/KIND.yaml`` from the defaults
    and the explanations. If a key has another default or meaning in a subclass, the subclass declares the field again.

    ``data_checks`` maps an input field to names of functions in ``stages.data_checks``, which check the artifact of this
    input as soon as it exists. Without these checks, a fault would show only when this stage begins, hours later.

    A subclass may define ``identity() -> list[str]``, which returns further strings for the artifact id. A nested model
    may define ``fingerprint() -> str``. The id then contains the fingerprint in place of the model's fields.
    """

    model_config = ConfigDict(allow_inf_nan=False, validate_default=True)
    data_checks: ClassVar[Mapping[str, Sequence[str]]] = {}

    def by_content(self) -> set[str]:
        """Return the fields whose values are not part of the id.

        In this class, these are the fields marked ``Later`` that have their default values. A subclass adds the fields that
        ``identity`` describes, such as a path whose content is hashed.
        """
        fields = type(self).model_fields
        return {name for name in marks(type(self), Later) if getattr(self, name) == fields[name].default}

    def identified_by(self, made_from: Mapping[str, Sequence[str]]) -> list[Any]:
        """Return the parts of the artifact id, as JSON: fields, reserved words in place of inputs, ``identity``, and inputs.

        Args:
            made_from: references ``kind/id`` of the input artifacts, by field.
        """
        by_content, inputs = self.by_content(), references(type(self))
        own = {name: value for name, value in _plain(self).items() if name not in {*made_from, *by_content}}
        read = {name: list(known) for name, known in made_from.items() if name not in by_content}
        literal = {}
        for name in read:
            value = getattr(self, name)
            words = value if isinstance(value, list | tuple) else [value]
            literal[name] = [word for word in words if word in inputs[name].literal]
        return [own, literal, list(self.identity()) if hasattr(self, "identity") else [], read]

    def values_of(self, *names: str) -> dict[str, Any]:
        """Return the values of the named fields, as keyword arguments."""
        return {name: getattr(self, name) for name in names}

    def input_error(self, inputs: Mapping[str, Sequence["StageConfig"]]) -> tuple[str, str] | None:
        """Check the config against the configs of the stages that it reads.

        A subclass overrides this method for faults that would otherwise show only when the stage begins, hours later.

        Args:
            inputs: for each field that names stages, the configs of these stages.

        Returns:
            the faulty field of this config and the error message; None if there is no fault.
        """
        return None

    def work(self, read: Read) -> Work:
        """Return an estimate of the stage's work for ``dry_run``; by default the work is unknown."""
        return Work()

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the sizes of the finished artifact.

        Args:
            expected: sizes that ``work`` estimated.
            metrics: metrics in the artifact's manifest.
        """
        return expected


def _plain(value: Any) -> Any:
    """Return a config value as JSON, without operational fields.

    A pydantic model with a method ``fingerprint`` is replaced by its fingerprint.
    """
    if isinstance(value, BaseModel):
        if hasattr(value, "fingerprint"):
            return {"fingerprint": value.fingerprint()}
        skipped = operational(type(value))
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields if name not in skipped}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def marks(config: type[BaseModel], kind: type[Mark]) -> dict[str, Mark]:
    """Return the fields of the config that have a mark of type ``kind``, and these marks, in the order of definition."""
    fields = config.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, kind)}


def references(config: type[BaseModel]) -> dict[str, Input]:
    """Return the fields of a stage config that name other stages, in the order of definition."""
    return marks(config, Input)


def operational(config: type[BaseModel]) -> set[str]:
    """Return the fields of a config on which the artifact id does not depend."""
    return set(marks(config, Operational))


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: a folder in the store that a stage has written."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of ``manifest.json``: kind, makes, id, config, inputs, metrics, versions, times."""
        return dict(read_json(self.path / "manifest.json"))

    @property
    def id(self) -> str:
        """The artifact id: 16 hexadecimal digits."""
        return self.path.name

    @property
    def kind(self) -> str:
        """The kind of the stage that made the artifact."""
        return self.path.parent.name

    @property
    def reference(self) -> str:
        """The path of the artifact in the store, ``kind/id``."""
        return f"{self.kind}/{self.id}"

    @property
    def warnings(self) -> list[str]:
        """The stage's warnings about its input, as sentences; the stage returns them as the metric ``warnings``."""
        return [str(text) for text in self.manifest.get("metrics", {}).get("warnings", [])]

    def all_warnings(self) -> list[str]:
        """Return the warnings of this artifact and of all its ancestors, without duplicates."""
        return list(dict.fromkeys(text for artifact in self.ancestors() for text in artifact.warnings))

    def inputs(self, field: str) -> list["Artifact"]:
        """Return the artifacts that the field ``field`` of the stage's config named."""
        store, manifest = self.path.parents[1], self.path / "manifest.json"
        return [Artifact(inside(store, reference, manifest)) for reference in self.manifest["inputs"].get(field, [])]

    def input(self, field: str) -> "Artifact":
        """Return the single artifact that the field ``field`` named."""
        return self.inputs(field)[0]

    def ancestor(self, product: str) -> "Artifact | None":
        """Return the nearest artifact that is a ``product``, breadth first from this one on; None if there is none."""
        return next((artifact for artifact in self.ancestors() if artifact.manifest["makes"] == product), None)

    def parents(self, product: str = "") -> list["Artifact"]:
        """Return the direct input artifacts; if ``product`` is given, only the artifacts that are a ``product``."""
        parents = [parent for field in self.manifest["inputs"] for parent in self.inputs(field)]
        return [parent for parent in parents if not product or parent.manifest["makes"] == product]

    def searched(self) -> list["Artifact"]:
        """Return this index and the indexes that it searches. An index that a stage ``encode`` made searches no other."""
        indexes = self.parents("index") if self.kind != "encode" else []
        return [self, *(part for index in indexes for part in index.searched())]

    def ancestors(self) -> Iterator["Artifact"]:
        """Yield this artifact and all its ancestors, each once, breadth first."""
        found = [self]
        for artifact in found:  # the list grows during the loop
            yield artifact
            found += [parent for parent in dict.fromkeys(artifact.parents()) if parent not in found]


def retriever_name(index: Artifact) -> str:
    """Return the name that runs and negatives give to the retriever of an index.

    The name is ``kind/id`` of the encoder, or of the index if there is no encoder. A fused index has its own name. An
    index that was built from a fused index has the name of the fused index.
    """
    named, below = index, [index]
    while len(below) == 1:
        named = below[0]
        below = named.parents("index")
    named = named if below else index.ancestor("encoder") or index
    return named.reference


class Wandb(Keys):
    """Settings of Weights & Biases (W&B), which receives the training curves in addition to the CSV file.

    Attributes:
        project: name of the W&B project.
        entity: W&B user or team; None = the default of the account.
        enabled: True, False, or auto: online if there is an API key, otherwise offline.
    """

    project: Text
    entity: Text | None
    enabled: bool | Literal["auto"]


@dataclass(frozen=True)
class DistributedProcess:
    """The rank of this process among the processes that compute one stage together.

    Attributes:
        rank: index of this process among all processes, from 0.
        processes: number of all processes (world size).
        local_rank: index of this process on its machine, from 0.
        local_processes: number of processes on this machine.
    """

    rank: int
    processes: int
    local_rank: int
    local_processes: int


@dataclass(frozen=True)
class Runtime:
    """Settings of this machine. They affect a stage's result only by rounding, which depends on threads and devices."""

    accelerator: str  # auto, cpu or gpu
    devices: int | str  # number of devices or auto, for stages that several processes compute together
    threads: int  # CPU threads of torch and BLAS in this process
    workers: int  # processes that prepare batches
    wandb: Wandb
    group: str  # name of the run or sweep, which is the W&B group
    output_root: Path  # the folder that all output is written into
    labels: Mapping[str, str] = field(default_factory=dict)  # stage -> label that distinguishes it from other jobs
    launcher: Launcher = field(default_factory=lambda: LocalLauncher(kind="local"))
    distributed: DistributedProcess | None = None  # set in a process that was started for the stage
    task: ShardTask | None = None  # set in a task that computes the stage, or some of its shards, by itself
    compile: bool = False  # whether torch compiles the layers that are trained
    flags: Mapping[str, Any] = field(default_factory=dict)  # further arguments of Lightning's Trainer
    tensorboard: bool = False  # whether curves are also written for TensorBoard
    trackio: str | None = None  # the Trackio project that also receives the curves

    @property
    def search_device(self) -> str | None:
        """The device for vector search: "cpu"; None = a GPU if there is one, otherwise the CPU."""
        return "cpu" if self.accelerator == "cpu" else None


@dataclass(frozen=True)
class Context:
    """The context of a stage, which its function receives besides the config.

    Attributes:
        stage_name: name of the stage in the recipe.
        folder: folder that the function writes into. The folder survives an interruption, so the function can resume from
            files that it wrote earlier. It becomes the artifact when the function returns.
        runtime: settings of this machine.
        made_from: input artifacts, by field of the config.
    """

    stage_name: str
    folder: Path
    runtime: Runtime
    made_from: Mapping[str, tuple[Artifact, ...]]

    def artifacts(self, field: str) -> list[Artifact]:
        """Return the input artifacts of ``field``; an empty list if the field holds a reserved word or null."""
        return list(self.made_from[field])

    def artifact(self, field: str) -> Artifact:
        """Return the only input artifact of ``field``. Raises ``LookupError`` if the field holds a reserved word or null."""
        return self.made_from[field][0]

    def inputs(self, field: str) -> list[Path]:
        """Return the folders of the input artifacts of ``field``."""
        return [artifact.path for artifact in self.made_from[field]]

    def input(self, field: str) -> Path:
        """Return the folder of the only input artifact of ``field``."""
        return self.artifact(field).path

    def place(self, key: str = "") -> str:
        """Return the name of the stage, or of one of its keys, as messages give it."""
        return f"stages.{self.stage_name}.{key}".removesuffix(".")

    def error(self, key: str, message: str) -> UserError:
        """Return an error about the stage's key ``key``, or about the stage if ``key`` is empty."""
        return UserError(f"{self.place(key)}: {message}")

    def say(self, text: str) -> None:
        """Print a line that begins with the name of the stage."""
        print(f"[{self.stage_name}] {text}", flush=True)
