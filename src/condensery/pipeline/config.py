"""The root of the composed config: the keys of ``conf/config.yaml``, as pydantic models that accept no other keys."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from condensery.errors import UserError, check_known, close_to, shown
from condensery.keys import AS_TEXT, NumberKeys, Text
from condensery.pipeline.figure_config import Figures
from condensery.pipeline.gpu_speeds import GPUS
from condensery.pipeline.launch.hardware import check_devices, threads_of_a_stage
from condensery.reporting.table_layout import Cost, TableLayout
from condensery.stages.base import LeaveOut, Name, NamedFile, Runtime, Wandb
from condensery.stages.checks import Split
from condensery.stages.launcher_config import Launcher
from condensery.stages.registry import registry
from condensery.stages.trainer_options import Callbacks, TrainerFlags

STUDY = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # names of runs and sweeps, which become names of folders
# a key of logger -> one of these modules must be installed
LIBRARIES = {"tensorboard": ("tensorboard", "tensorboardX"), "trackio": ("trackio",)}
StudyName = Annotated[str, Field(pattern=STUDY, max_length=100), AS_TEXT]


class TrainerConfig(NumberKeys):
    """Settings of the hardware. Because of their upper limits, a typo cannot start thousands of processes.

    Attributes:
        devices: number of processes per node that compute a stage; ``auto`` = one for each GPU.
        threads: number of CPU threads of each stage; ``auto`` divides the cores among the parallel ``jobs``.
        workers: number of processes that prepare batches.
        compile: whether torch compiles the layers that are trained.
        flags: arguments of Lightning's Trainer.
        callbacks: Lightning callbacks by label.
    """

    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"]
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    threads: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"]
    workers: Annotated[int, Field(ge=0, le=256)]
    compile: bool
    flags: TrainerFlags
    callbacks: Callbacks


class LoggerConfig(NumberKeys):
    """The destinations of training curves besides the CSV file, which is always written.

    Attributes:
        wandb: settings of Weights & Biases.
        tensorboard: whether TensorBoard files are written into ``logs/tensorboard`` of the artifact.
        trackio: name of the Trackio project; None = no Trackio.
    """

    wandb: Wandb
    tensorboard: bool
    trackio: Text | None

    def check_installed(self) -> None:
        """Raise ``UserError`` about a library that is requested and not installed."""
        for key, modules in LIBRARIES.items():
            if getattr(self, key) and not any(map(find_spec, modules)):
                raise UserError(f"logger.{key}: {key} is not installed; pip install {key}, or condensery[{key}]")


class ChooseInSweep(NumberKeys):
    """The choice among the jobs of a sweep: of several values of ``key``, the table shows the value that is best on dev.

    Attributes:
        key: key of the recipe that the sweep varies, such as ``stage.finetune.epochs``.
        by: metric on dev; None = the first metric of the table.
        row: the row whose best value is used for all rows; None = each row has a best value of its own.
    """

    key: Annotated[str, Field(pattern=r"^stages?\.[\w-]+\.[\w.-]+$")]
    by: Text | None = None
    row: Text | None = None


def _is_a_row(value: str | None, info: ValidationInfo) -> str | None:
    rows = info.data.get("rows", {})
    if value is not None and (rows or not info.data.get("published")):
        check_known(value, rows, f"{value!r} is not a row of the table", ValueError)
    return value


def _by_what_is_measured(value: ChooseInSweep | None, info: ValidationInfo) -> ChooseInSweep | None:
    for given, known in ((value.row, "rows"), (value.by, "metrics")) if value else ():
        if given is not None and known in info.data:
            message = f"{given!r} is not a {known.removesuffix('s')} of the table"
            check_known(given, info.data[known], message, ValueError)
    return value


class TableConfig(TableLayout):
    """The table that compares retrievers. ``TableLayout`` has the keys of the columns and of the rows with published numbers.

    Attributes:
        rows: label of a row -> the stage with its retriever.
        baseline: the row that other rows are compared with in the significance test.
        metrics: metrics that the table shows.
        split: split that is measured.
        optional: whether the table is left out if the data have no judgements of the split.
        recommend: whether the text below the table recommends a row, with which ``ask`` then searches
            (``reporting.recommendation``).
        with_train_queries: the recipe that is named below the table if the collection has judged train queries and this
            recipe does not use them; None = no recipe is named.
        choose: the choice of a sweep among the values of a key (``pipeline.reports.chosen``); None = all jobs are shown.
        costs: costs of each row, in columns after the metrics, read from the manifests of its stages; not shown with
            ``columns``.
        studies: runs and sweeps whose rows are shown if a table is printed without a recipe.
        command: the command that measures these studies.
    """

    rows: Annotated[dict[Text, Text], LeaveOut]
    baseline: Annotated[Text | None, AfterValidator(_is_a_row)]
    metrics: Annotated[list[str], Field(min_length=1)]
    split: Split
    optional: bool = False
    recommend: bool = False
    with_train_queries: Text | None = None
    choose: Annotated[ChooseInSweep | None, AfterValidator(_by_what_is_measured)] = None
    costs: tuple[Cost, ...] = ()
    studies: list[StudyName]
    command: Text | None


class ChooseConfig(NumberKeys):
    """The choice among several checkpoints (``pipeline.several_checkpoints``).

    Attributes:
        by: stage of kind ``validate`` that measures each checkpoint.
        rows: rows of the table that are shown for each checkpoint.
    """

    by: Name
    rows: list[Text]


def _has_an_owner(value: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", value):
        raise ValueError(f"{value!r} is not a name on the hub; it must be owner/name")
    return value


class PushTarget(NumberKeys):
    """The Hugging Face repository that an encoder is uploaded to; a plain string sets ``name`` (owner/name)."""

    name: Annotated[Text, AfterValidator(_has_an_owner)]
    license: Text | None = None
    private: bool = True


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _by_stage(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"names no stage; write {{STAGE: {shown(value)}}}, such as {{round2: me/name}}")
    return value


def _is_a_gpu(value: str) -> str:
    check_known(value, GPUS, f"{value!r} is none of {', '.join(GPUS)}", ValueError)
    return value


def _asks_something(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise ValueError("the text is empty; write a query")
    return value


def _names_a_folder(value: Any) -> Any:
    if value == "":
        raise ValueError("names no folder; give a path")
    return value


class RootConfig(NumberKeys):
    """The keys of the root, which ``conf/config.yaml`` explains.

    The groups ``data`` and ``backbone`` are checked by the stages that read them.
    """

    name: StudyName
    seed: Annotated[int, Field(ge=0)]
    sentence_language: Text
    output_root: Annotated[NamedFile, BeforeValidator(_names_a_folder), AfterValidator(Path.absolute)]
    jobs: Annotated[int, Field(gt=0, le=256)]
    fetch: bool
    dry_run: bool | Literal["plan"]
    dry_run_gpu: Annotated[Text, AfterValidator(_is_a_gpu)]
    dry_run_share: Annotated[float, Field(gt=0, le=1)]
    published_cost: Text | None
    force: list[Text]
    ask: Annotated[Text | None, AfterValidator(_asks_something)]
    next: list[Text]
    choose: ChooseConfig | None
    estimate: bool
    push_to_hub: Annotated[
        dict[Name, Annotated[PushTarget, BeforeValidator(_by_name)]], BeforeValidator(_by_stage), LeaveOut
    ]
    data: dict[str, Any]
    backbone: dict[str, Any]
    trainer: TrainerConfig
    launcher: Launcher
    logger: LoggerConfig
    stage: dict[str, dict[str, Any]]
    stages: Annotated[dict[Name, dict[str, Any]], LeaveOut]
    table: TableConfig
    figures: Figures

    def runtime(self) -> Runtime:
        """Return the settings of this machine for the stages of a single run.

        The W&B group is the run's name, and no stage has a label. For a job of a sweep, the caller sets group and labels.

        Raises:
            UserError: a library is not installed, or this machine lacks the devices.
        """
        self.logger.check_installed()
        trainer = self.trainer
        if self.launcher.kind == "local":
            check_devices(trainer.accelerator, trainer.devices)
        if self.launcher.kind == "ray" and not find_spec("ray"):
            raise UserError("launcher: ray is not installed; pip install condensery[ray]")
        if trainer.flags.deterministic:  # torch reads this at its first product on a GPU, maybe before any training
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return Runtime(
            accelerator=trainer.accelerator,
            devices=trainer.devices,
            threads=threads_of_a_stage(trainer.threads, self.jobs),
            workers=trainer.workers,
            wandb=self.logger.wandb,
            tensorboard=self.logger.tensorboard,
            trackio=self.logger.trackio,
            group=self.name,
            output_root=self.output_root,
            launcher=self.launcher,
            compile=trainer.compile,
            flags=trainer.flags.given(),
        )


def hint_for_key(first: str) -> str:
    """Return a hint about an unknown key that begins with ``first``: the full name of a stage's key, or a similar key."""
    if first in RootConfig.model_fields:  # then the stage or group checks the rest of the key
        return ""
    kinds = [kind for kind, stage in registry().items() if first in stage.config.model_fields]
    if kinds:
        kind = "finetune" if "finetune" in kinds else kinds[0]
        return f"; it is a key of stages, so name the kind of stage, such as stage.{kind}.{first}"
    return close_to(first, RootConfig.model_fields)
