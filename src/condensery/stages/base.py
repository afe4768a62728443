"""What every stage knows: the base of its config, the artifacts that it reads, and how it runs on this machine."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from condensery.stages.launcher import Launcher, LocalLauncher
from condensery.stages.workload import Read, Sizes, Work
from condensery.system.files import inside, read_json

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # of stages, figures and callbacks: a dot is kept for stages added automatically
Name = Annotated[str, Field(pattern=NAME, max_length=100)]


def _without_null(value: Any) -> Any:
    """An entry that a recipe sets to null, to leave out what the recipe that it builds on has, is none."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


LeaveOut = BeforeValidator(_without_null)


@dataclass(frozen=True)
class Input:
    """Marks a field that names other stages, whose artifacts the stage reads.

    ``product`` is what those stages must make. ``literal`` lists words that are no stage's name (``backbone``): they
    stay in the config. The field is a ``str``, a ``list[str]`` or either of them ``| None``.
    """

    product: str
    literal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operational:
    """Marks a field that cannot change the result (workers, log intervals): it does not enter the artifact id."""


class StageConfig(BaseModel):
    """Base of all stage configs: frozen, closed, without defaults (these live in ``conf/stage/KIND.yaml``).

    A subclass may define ``identity() -> list[str]``: further strings for the artifact id. A nested model that defines
    ``fingerprint() -> str`` enters the id by its fingerprint instead of its fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        return no_bool_as_number(cls, value, info)

    def by_content(self) -> set[str]:
        """Fields that do not enter the id as they stand, but by what ``identity`` says: of a file or folder its content.

        A field that came later is among them as long as it changes nothing, and so are the stages that it names.
        """
        return set()

    def input_error(self, inputs: Mapping[str, Sequence["StageConfig"]]) -> tuple[str, str] | None:
        """What does not fit the configs of the stages that it reads (by field): its own field, and what to say of it.

        A subclass overrides it for faults that would otherwise show after hours, when the stage begins.
        """
        return None

    def work(self, read: Read) -> Work:
        """What the stage will have to do, for ``dry_run``; by default nobody knows."""
        return Work()

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The sizes of the finished artifact: ``expected`` are those of ``work``, ``metrics`` what its manifest says."""
        return expected


def no_bool_as_number(model: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse ``steps: true``, which pydantic would read as 1. Raises ``ValueError``."""
    if isinstance(value, bool):
        allowed = set(_leaves(model.model_fields[str(info.field_name)].annotation))
        if bool not in allowed and Any not in allowed and allowed & {int, float}:
            raise ValueError(f"must be a number, got {str(value).lower()}")
    return value


def _leaves(annotation: Any) -> list[Any]:
    """The plain types in an annotation: ``int | None`` -> [int, NoneType]."""
    if typing.get_origin(annotation) in (typing.Union, UnionType, typing.Annotated):
        return [leaf for part in typing.get_args(annotation) for leaf in _leaves(part)]
    return [annotation]


def references(config: type[BaseModel]) -> dict[str, Input]:
    """The fields of a stage config that name other stages, in the order of their definition."""
    marks = {name: [m for m in field.metadata if isinstance(m, Input)] for name, field in config.model_fields.items()}
    return {name: marked[0] for name, marked in marks.items() if marked}


def operational(config: type[BaseModel]) -> set[str]:
    """The fields of a config that do not enter the artifact id."""
    return {
        name for name, field in config.model_fields.items() if any(isinstance(m, Operational) for m in field.metadata)
    }


@dataclass(frozen=True)
class Artifact:
    """A finished folder in the store."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What ``manifest.json`` says: kind, makes, id, config, inputs, metrics, versions, times."""
        return dict(read_json(self.path / "manifest.json"))

    @property
    def id(self) -> str:
        """The artifact id: 16 hexadecimal digits."""
        return self.path.name

    @property
    def kind(self) -> str:
        """The stage kind that made it."""
        return self.path.parent.name

    @property
    def warnings(self) -> list[str]:
        """What its stage found amiss in its input, in sentences; a stage returns them under this name."""
        return [str(text) for text in self.manifest.get("metrics", {}).get("warnings", [])]

    def all_warnings(self) -> list[str]:
        """The same of this artifact and of all that it was made from, each once."""
        texts, left, seen = dict[str, None](), [self], {self.path}
        while left:
            artifact = left.pop(0)
            texts |= dict.fromkeys(artifact.warnings)
            parents = [parent for field in artifact.manifest["inputs"] for parent in artifact.inputs(field)]
            new = [parent for parent in dict.fromkeys(parents) if parent.path not in seen]
            seen |= {parent.path for parent in new}
            left += new
        return list(texts)

    def inputs(self, field: str) -> list["Artifact"]:
        """The artifacts that it was made from, in the field ``field`` of its config."""
        store, manifest = self.path.parents[1], self.path / "manifest.json"
        return [Artifact(inside(store, reference, manifest)) for reference in self.manifest["inputs"].get(field, [])]

    def input(self, field: str) -> "Artifact":
        """The one artifact that it was made from in ``field``."""
        return self.inputs(field)[0]

    def ancestor(self, product: str) -> "Artifact | None":
        """The nearest artifact that makes ``product`` among this one and what it was made from (breadth first)."""
        level = [self]
        while level:
            for artifact in level:
                if artifact.manifest["makes"] == product:
                    return artifact
            level = [
                parent
                for artifact in level
                for field in artifact.manifest["inputs"]
                for parent in artifact.inputs(field)
            ]
        return None


def retriever_name(index: Artifact) -> str:
    """What runs and negatives call the retriever that made them: ``kind/id`` of its encoder, or of an index without one.

    An index that joins several, or that was made of such a one, is called by the one that joins.
    """
    named, below = index, [index]
    while len(below) == 1:
        named = below[0]
        parents = [parent for field in named.manifest["inputs"] for parent in named.inputs(field)]
        below = [parent for parent in parents if parent.manifest["makes"] == "index"]
    named = named if below else index.ancestor("encoder") or index
    return f"{named.kind}/{named.id}"


@dataclass(frozen=True)
class Wandb:
    """Where curves go besides the CSV. ``enabled``: auto = online with a key, otherwise offline."""

    project: str
    entity: str | None
    enabled: bool | Literal["auto"]


@dataclass(frozen=True)
class DistributedProcess:
    """Which process this is of those that compute a stage together, and on its machine; both from 0."""

    rank: int
    processes: int
    local_rank: int
    local_processes: int


@dataclass(frozen=True)
class Runtime:
    """How a stage runs on this machine. None of it may change the result, rounding by threads and devices apart."""

    accelerator: str  # auto, cpu or gpu
    devices: int | str  # a number or auto; of stages that several processes compute together
    threads: int  # for torch and BLAS in this process
    workers: int  # processes that prepare data
    wandb: Wandb
    group: str  # name of the study, a run or a sweep: the W&B group
    output_root: Path  # everything that is written lies here
    labels: Mapping[str, str] = field(default_factory=dict)  # stage -> what tells it from the same one of other jobs
    launcher: Launcher = field(default_factory=lambda: LocalLauncher(kind="local"))
    distributed: DistributedProcess | None = None  # in a process that was started for the stage
    compile: bool = False  # whether layers that train are compiled by torch
    flags: Mapping[str, Any] = field(default_factory=dict)  # of Lightning's Trainer, besides those that the loop sets

    @property
    def search_device(self) -> str | None:
        """Where vectors are searched: "cpu", or None for a GPU where there is one."""
        return "cpu" if self.accelerator == "cpu" else None


@dataclass(frozen=True)
class Context:
    """What a stage function gets besides its config.

    ``folder`` is where it writes. It survives an interruption: what lies there already is the stage's own earlier work,
    to go on from. It becomes the artifact when the function returns.
    """

    stage_name: str
    folder: Path
    runtime: Runtime
    made_from: Mapping[str, tuple[Artifact, ...]]

    def artifacts(self, field: str) -> list[Artifact]:
        """The input artifacts of ``field``; none where it holds a literal word or null."""
        return list(self.made_from[field])

    def artifact(self, field: str) -> Artifact:
        """The one input artifact of ``field``. Raises ``LookupError`` where it holds a literal word or null."""
        return self.made_from[field][0]

    def inputs(self, field: str) -> list[Path]:
        """The folders of the input artifacts of ``field``."""
        return [artifact.path for artifact in self.made_from[field]]

    def input(self, field: str) -> Path:
        """The folder of the one input artifact of ``field``."""
        return self.artifact(field).path
