"""The root of the composed config: what ``conf/config.yaml`` holds, as closed pydantic models."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from condensery.errors import close_to
from condensery.pipeline.figure_config import Figures
from condensery.pipeline.gpus import GPUS
from condensery.reporting.layout import AS_TEXT, TableLayout, Text
from condensery.stages.base import LeaveOut, Name, Wandb, no_bool_as_number
from condensery.stages.checks import Split
from condensery.stages.launcher import Launcher
from condensery.stages.trainer_options import Callbacks, TrainerFlags
from condensery.system.files import expanded

STUDY = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # names of runs and sweeps, which become folders as those do
StudyName = Annotated[str, Field(pattern=STUDY, max_length=100), AS_TEXT]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        return no_bool_as_number(cls, value, info)


class TrainerConfig(_Closed):
    """Which hardware is used, and how. The limits keep a slip of the keyboard from filling the machine with processes."""

    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"]
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    threads: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"]
    workers: Annotated[int, Field(ge=0, le=256)]
    compile: bool
    flags: TrainerFlags
    callbacks: Callbacks


class WandbConfig(_Closed):
    """Weights & Biases."""

    project: Text
    entity: Text | None
    enabled: bool | Literal["auto"]

    def settings(self) -> Wandb:
        """The same as a plain record for the stages."""
        return Wandb(self.project, self.entity, self.enabled)


class LoggerConfig(_Closed):
    """Where curves go. A CSV is always written."""

    wandb: WandbConfig


class TableConfig(TableLayout):
    """The comparison: row label -> retriever (a stage), the metrics, and the row that the others are tested against.

    What stands beside the measured rows is the ``TableLayout``. ``studies`` names runs and sweeps whose rows a table shows
    that is written without running anything, and ``command`` what measures them. ``recommend``: the words below name the row
    to use, which answers questions (``reporting.recommendation``).
    """

    rows: Annotated[dict[Text, Text], LeaveOut]
    baseline: Text | None
    metrics: Annotated[list[str], Field(min_length=1)]
    split: Split
    optional: bool = False
    recommend: bool = False
    studies: list[StudyName]
    command: Text | None

    @field_validator("baseline")
    @classmethod
    def _is_a_row(cls, value: str | None, info: ValidationInfo) -> str | None:
        rows = info.data.get("rows", {})
        if value is not None and value not in rows and (rows or not info.data.get("published")):
            raise ValueError(f"{value!r} is not a row of the table{close_to(value, rows)}")
        return value

    def identity(self) -> dict[str, Any]:
        """What of it tells runs apart: not how their rows are shown."""
        return self.model_dump(include={"rows", "baseline", "metrics", "split"})


class ChooseConfig(_Closed):
    """How one of several checkpoints is chosen (``pipeline.starts``): by a stage ``validate``; ``rows`` of each are shown."""

    by: Name
    rows: list[Text]


class PushTarget(_Closed):
    """Where an encoder goes on the Hugging Face hub; a text alone is its name."""

    name: Text
    license: Text | None = None
    private: bool = True

    @field_validator("name")
    @classmethod
    def _has_an_owner(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", value):
            raise ValueError(f"{value!r} is no name on the hub; it must be owner/name")
        return value


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class RootConfig(_Closed):
    """The keys of the root. Groups that only stages read (``data``, ``backbone``) are checked by those stages."""

    name: StudyName
    seed: Annotated[int, Field(ge=0)]
    output_root: Path
    jobs: Annotated[int, Field(gt=0, le=256)]
    fetch: bool
    dry_run: bool | Literal["plan"]
    dry_run_gpu: Text
    dry_run_share: Annotated[float, Field(gt=0, le=1)]
    published_cost: Text | None
    force: list[Text]
    ask: Text | None
    next: list[Text]
    choose: ChooseConfig | None
    estimate: bool
    push_to_hub: Annotated[dict[Name, Annotated[PushTarget, BeforeValidator(_by_name)]], LeaveOut]
    data: dict[str, Any]
    backbone: dict[str, Any]
    trainer: TrainerConfig
    launcher: Launcher
    logger: LoggerConfig
    stage: dict[str, dict[str, Any]]
    stages: Annotated[dict[Name, dict[str, Any]], LeaveOut]
    table: TableConfig
    figures: Figures

    @field_validator("dry_run_gpu")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in GPUS:
            raise ValueError(f"{value!r} is none of {', '.join(GPUS)}{close_to(value, GPUS)}")
        return value

    @field_validator("ask")
    @classmethod
    def _asks_something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("the text is empty")
        return value

    @field_validator("output_root", mode="before")
    @classmethod
    def _somewhere(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("names no folder")
        return value

    @field_validator("output_root")
    @classmethod
    def _whole_path(cls, value: Path) -> Path:
        return expanded(value).absolute()
