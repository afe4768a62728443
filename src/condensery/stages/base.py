"""Shared types of all stages: the base of the configs, the artifacts, and the settings of this machine."""

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
    """Drop entries that are null: a recipe leaves out an entry of the recipe that it builds on by setting it to null."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


LeaveOut = BeforeValidator(_without_null)


@dataclass(frozen=True)
class Input:
    """Marks a field that names other stages, whose artifacts the stage reads.

    The field is a ``str``, a ``list[str]`` or either of them ``| None``.

    Attributes:
        product: the product that the named stages must make.
        literal: words that are no stage's name (``backbone``); they stay in the config.
    """

    product: str
    literal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operational:
    """Marks a field that cannot change the result (workers, log intervals) and so does not enter the artifact id."""


class StageConfig(BaseModel):
    """Base of all stage configs: frozen, closed, without defaults (these live in ``conf/stage/KIND.yaml``).

    A subclass may define ``identity() -> list[str]``, which returns further strings for the artifact id. A nested model
    that defines ``fingerprint() -> str`` enters the id by its fingerprint instead of its fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        return no_bool_as_number(cls, value, info)

    def by_content(self) -> set[str]:
        """Return the fields that enter the id through ``identity`` instead of their values, such as a path by its content.

        A field that was added later, and the stages that it names, are also left out as long as the field changes nothing.
        """
        return set()

    def input_error(self, inputs: Mapping[str, Sequence["StageConfig"]]) -> tuple[str, str] | None:
        """Check the config against the configs of the stages that it reads.

        A subclass overrides this for faults that would otherwise show after hours, when the stage begins.

        Args:
            inputs: the configs of the stages that each field names, by field.

        Returns:
            the faulty field of this config and the complaint about it; None where everything fits.
        """
        return None

    def work(self, read: Read) -> Work:
        """Return an estimate of the stage's work, for ``dry_run``; by default the work is not known."""
        return Work()

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the sizes of the finished artifact.

        Args:
            expected: the sizes that ``work`` has estimated.
            metrics: the values in the artifact's manifest.
        """
        return expected


def no_bool_as_number(model: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse ``steps: true``, which pydantic would read as 1. Raises ``ValueError``."""
    if isinstance(value, bool):
        allowed = set(_leaves(model.model_fields[str(info.field_name)].annotation))
        if bool not in allowed and Any not in allowed and allowed & {int, float}:
            raise ValueError(f"must be a number, got {str(value).lower()}")
    return value


def _leaves(annotation: Any) -> list[Any]:
    """Return the plain types in an annotation: ``int | None`` -> [int, NoneType]."""
    if typing.get_origin(annotation) in (typing.Union, UnionType, typing.Annotated):
        return [leaf for part in typing.get_args(annotation) for leaf in _leaves(part)]
    return [annotation]


def references(config: type[BaseModel]) -> dict[str, Input]:
    """Return the fields of a stage config that name other stages, in the order of their definition."""
    marks = {name: [m for m in field.metadata if isinstance(m, Input)] for name, field in config.model_fields.items()}
    return {name: marked[0] for name, marked in marks.items() if marked}


def operational(config: type[BaseModel]) -> set[str]:
    """Return the fields of a config that do not enter the artifact id."""
    return {
        name for name, field in config.model_fields.items() if any(isinstance(m, Operational) for m in field.metadata)
    }


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
    def warnings(self) -> list[str]:
        """The warnings of the artifact's stage about its input, in sentences; a stage returns them under this name."""
        return [str(text) for text in self.manifest.get("metrics", {}).get("warnings", [])]

    def all_warnings(self) -> list[str]:
        """Return the warnings of this artifact and of all artifacts that it was made from, each warning once."""
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
        """Return the artifacts that the field ``field`` of the stage's config named."""
        store, manifest = self.path.parents[1], self.path / "manifest.json"
        return [Artifact(inside(store, reference, manifest)) for reference in self.manifest["inputs"].get(field, [])]

    def input(self, field: str) -> "Artifact":
        """Return the one artifact that the field ``field`` named."""
        return self.inputs(field)[0]

    def ancestor(self, product: str) -> "Artifact | None":
        """Return the nearest artifact that makes ``product``, breadth first from this one through its inputs; or None."""
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
    """Return the name that runs and negatives give to the retriever of an index.

    The name is ``kind/id`` of the encoder, or of the index where there is no encoder. A fused index, and an index that was
    made from a fused one, are named after the fused index.
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
    """Settings of Weights & Biases, which gets the training curves besides the CSV.

    Attributes:
        project: name of the project.
        entity: the user or team; None = the default of the account.
        enabled: auto = online with a key, otherwise offline.
    """

    project: str
    entity: str | None
    enabled: bool | Literal["auto"]


@dataclass(frozen=True)
class DistributedProcess:
    """The place of this process among those that compute a stage together.

    Attributes:
        rank: number of this process among all processes, from 0.
        processes: number of all processes.
        local_rank: number of this process on its machine, from 0.
        local_processes: number of processes on its machine.
    """

    rank: int
    processes: int
    local_rank: int
    local_processes: int


@dataclass(frozen=True)
class Runtime:
    """Settings of a stage on this machine. They do not change the result, apart from rounding by threads and devices."""

    accelerator: str  # auto, cpu or gpu
    devices: int | str  # a number or auto; for stages that several processes compute together
    threads: int  # for torch and BLAS in this process
    workers: int  # processes that prepare data
    wandb: Wandb
    group: str  # name of the study, a run or a sweep: the W&B group
    output_root: Path  # everything that is written lies here
    labels: Mapping[str, str] = field(default_factory=dict)  # stage -> words that tell it from this stage of other jobs
    launcher: Launcher = field(default_factory=lambda: LocalLauncher(kind="local"))
    distributed: DistributedProcess | None = None  # set in a process that was started for the stage
    compile: bool = False  # whether layers that train are compiled by torch
    flags: Mapping[str, Any] = field(default_factory=dict)  # of Lightning's Trainer, besides the loop's own
    tensorboard: bool = False  # whether TensorBoard gets the curves too
    trackio: str | None = None  # the project in Trackio that gets the curves too

    @property
    def search_device(self) -> str | None:
        """The device that searches vectors: "cpu", or None for a GPU where there is one."""
        return "cpu" if self.accelerator == "cpu" else None


@dataclass(frozen=True)
class Context:
    """The surroundings of a stage, which its function gets besides the config.

    Attributes:
        stage_name: name of the stage in the recipe.
        folder: the folder that the function writes into. It survives an interruption, so that files in it are the stage's
            own earlier work, to go on from. It becomes the artifact when the function returns.
        runtime: settings of this machine.
        made_from: the input artifacts, by field of the config.
    """

    stage_name: str
    folder: Path
    runtime: Runtime
    made_from: Mapping[str, tuple[Artifact, ...]]

    def artifacts(self, field: str) -> list[Artifact]:
        """Return the input artifacts of ``field``; the list is empty where the field holds a literal word or null."""
        return list(self.made_from[field])

    def artifact(self, field: str) -> Artifact:
        """Return the one input artifact of ``field``. Raises ``LookupError`` where it holds a literal word or null."""
        return self.made_from[field][0]

    def inputs(self, field: str) -> list[Path]:
        """Return the folders of the input artifacts of ``field``."""
        return [artifact.path for artifact in self.made_from[field]]

    def input(self, field: str) -> Path:
        """Return the folder of the one input artifact of ``field``."""
        return self.artifact(field).path
