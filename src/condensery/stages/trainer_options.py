"""What recipes set of Lightning: arguments of its Trainer (``trainer.flags``) and its callbacks (``trainer.callbacks``).

A recipe may be somebody else's. So a callback is one of a list, chosen by name and given plain values, and writes nowhere
but into the folder of its stage. Imports neither torch nor Lightning: the checks belong to a dry run as well.
"""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from condensery.stages.base import LeaveOut, Name

Count = Annotated[int, Field(gt=0)]


def _logged(name: str) -> str:
    if name != "val/mrr@10" and not name.startswith("train/"):
        raise ValueError(f"{name!r} is not logged; give val/mrr@10, or a curve of training such as train/loss")
    return name


Curve = Annotated[str, AfterValidator(_logged)]

NO_EPOCHS = "acts at the end of epochs, and to Lightning a stage is one epoch"
BY_HAND = "the modules optimise by hand"
VALIDATES = "use validate_every, validation_queries and validation_passages of the stage"
LENGTH = "use steps, epochs or token_budget of the stage"

# Flags that the training loop sets itself, or that do nothing there; what to use instead. All that could change a result
# are among them, so that ``TrainerFlags`` need not enter the ids of artifacts.
OWN_FLAGS = {
    "accelerator": "use trainer.accelerator",
    "strategy": "use trainer.devices; the processes of a stage exchange their gradients once a step",
    "devices": "use trainer.devices",
    "num_nodes": "use launcher.nodes",
    "precision": "use trainer.precision",
    "logger": "use the group logger",
    "callbacks": "use trainer.callbacks",
    "fast_dev_run": "use steps=1 of the stage",
    "max_epochs": LENGTH,
    "min_epochs": LENGTH,
    "max_steps": LENGTH,
    "min_steps": LENGTH,
    "max_time": f"{LENGTH}: a result must not depend on how fast the machine is",
    "limit_train_batches": LENGTH,
    "limit_val_batches": VALIDATES,
    "limit_test_batches": "a stage that trains tests nothing",
    "limit_predict_batches": "a stage that trains predicts nothing",
    "overfit_batches": "use train_queries or max_passages for less data",
    "val_check_interval": VALIDATES,
    "check_val_every_n_epoch": VALIDATES,
    "num_sanity_val_steps": VALIDATES,
    "log_every_n_steps": "use log_every of the stage",
    "enable_checkpointing": "use checkpoint_every and checkpoint_minutes of the stage",
    "enable_progress_bar": "the stage shows its own progress",
    "enable_model_summary": "use trainer.callbacks={summary: {name: RichModelSummary}}",
    "accumulate_grad_batches": "use batch_size and chunk_tokens of the stage: a batch of any size is accumulated",
    "gradient_clip_val": "use max_grad_norm of the stage",
    "gradient_clip_algorithm": "use max_grad_norm of the stage",
    "inference_mode": "a stage that trains tests and predicts nothing",
    "use_distributed_sampler": "the stage shares each batch among its processes itself",
    "barebones": "a stage needs its logs and checkpoints",
    "plugins": "a recipe gives plain values only; use trainer.precision and the group launcher",
    "sync_batchnorm": "the models have no BatchNorm",
    "reload_dataloaders_every_n_epochs": "to Lightning a stage is one epoch",
    "default_root_dir": "use output_root",
    "enable_autolog_hparams": "W&B gets the config of the stage",
    "model_registry": "a recipe sends no model anywhere",
}

OTHER_CALLBACKS = {  # of Lightning's; why they are not among ``Callback``, or what to use instead
    "BackboneFinetuning": NO_EPOCHS,
    "BaseFinetuning": "is there to be derived from",
    "BasePredictionWriter": "a stage that trains predicts nothing",
    "BatchSizeFinder": "use chunk_tokens of the stage for what fits into memory",
    "Callback": "is there to be derived from",
    "Checkpoint": "is there to be derived from",
    "GradientAccumulationScheduler": OWN_FLAGS["accumulate_grad_batches"],
    "LambdaCallback": "a recipe names no functions",
    "LearningRateFinder": f"{BY_HAND}; sweep over learning_rate instead",
    "ModelPruning": NO_EPOCHS,
    "ModelSummary": "use RichModelSummary",
    "OnExceptionCheckpoint": OWN_FLAGS["enable_checkpointing"],
    "ProgressBar": OWN_FLAGS["enable_progress_bar"],
    "RichProgressBar": OWN_FLAGS["enable_progress_bar"],
    "SpikeDetection": f"reads a loss that the modules do not return, since {BY_HAND}",
    "StochasticWeightAveraging": f"{NO_EPOCHS}; use EMAWeightAveraging",
    "TQDMProgressBar": OWN_FLAGS["enable_progress_bar"],
    "ThroughputMonitor": "train/tokens_per_s is logged anyway",
    "Timer": OWN_FLAGS["max_time"],
    "WeightAveraging": "averages from the first step on; use EMAWeightAveraging",
}


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)  # strict: true is not 1


class TrainerFlags(_Closed):
    """``trainer.flags``: arguments of Lightning's Trainer, of all stages that train; None = as Lightning has it.

    None of them changes a result, rounding apart: like ``trainer.compile`` they do not enter the ids of artifacts.
    """

    benchmark: bool | None = None
    detect_anomaly: bool | None = None
    deterministic: bool | Literal["warn"] | None = None
    profiler: Literal["simple", "advanced", "pytorch"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_those_of_the_loop(cls, value: Any) -> Any:
        own = [name for name in value if name in OWN_FLAGS] if isinstance(value, dict) else []
        if own:
            raise ValueError(f"{own[0]} is not set here; {OWN_FLAGS[own[0]]}")
        return value

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return self.model_dump(exclude_none=True)


class _Callback(_Closed):
    """One of Lightning's callbacks, with its arguments; those that are left out here make no sense in a stage.

    Attributes:
        changes: whether it changes what the stage makes, and so the id of its artifact.
        everywhere: whether every process has it, where several train together; otherwise the first alone.
    """

    changes: ClassVar[bool] = False
    everywhere: ClassVar[bool] = False
    name: str

    @property
    def at_validation(self) -> bool:
        """Whether it does nothing where nothing is validated."""
        return False

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """Of the class of that name. ``folder``: where it may write; ``validated``: whether the stage is."""
        return self.model_dump(exclude={"name"})


class EarlyStopping(_Callback):
    """Ends the training where ``monitor`` gets no better; asked after every validation."""

    changes = True
    name: Literal["EarlyStopping"]
    monitor: Curve
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    patience: Annotated[int, Field(ge=0)] = 3
    mode: Literal["min", "max"] = "min"
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None

    @property
    def at_validation(self) -> bool:
        """Always."""
        return True

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """With the time at which it is asked, which Lightning would not guess: the stage validates by itself."""
        return {**super().arguments(folder, validated), "check_on_train_epoch_end": False}


class ModelCheckpoint(_Callback):
    """Keeps checkpoints in the artifact, beside the weights of the last step; no stage reads them."""

    changes = True
    name: Literal["ModelCheckpoint"]
    monitor: Curve | None = None
    save_last: bool | None = None
    save_top_k: Annotated[int, Field(ge=-1)] = 1
    save_weights_only: bool = False
    mode: Literal["min", "max"] = "min"
    every_n_train_steps: Count | None = None

    @property
    def at_validation(self) -> bool:
        """Where it keeps those of the best validations."""
        return self.monitor == "val/mrr@10"

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """With the folder. A resumed run writes again what lies there of steps behind its checkpoint."""
        at_the_end = None if not validated else False  # as Lightning has it: after the validations, where there are any
        own = {"dirpath": folder, "enable_version_counter": False, "save_on_train_epoch_end": at_the_end}
        return {**super().arguments(folder, validated), **own}


class EMAWeightAveraging(_Callback):
    """The weights that are validated, and that the stage makes, are an exponential moving average of the trained ones."""

    changes = everywhere = True
    name: Literal["EMAWeightAveraging"]
    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    update_every_n_steps: Count = 1
    update_starting_at_step: Annotated[int, Field(ge=0)] | None = None


class LearningRateMonitor(_Callback):
    """Logs the learning rate of each group of weights."""

    name: Literal["LearningRateMonitor"]
    logging_interval: Literal["step", "epoch"] | None = None
    log_momentum: bool = False
    log_weight_decay: bool = False


class DeviceStatsMonitor(_Callback):
    """Logs the memory of a GPU, and of the CPU where ``cpu_stats``."""

    name: Literal["DeviceStatsMonitor"]
    cpu_stats: bool = False

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.cpu_stats and importlib.util.find_spec("psutil") is None:
            raise ValueError("cpu_stats needs psutil, which is not installed: pip install psutil")
        return self


class RichModelSummary(_Callback):
    """Prints the modules and how many weights they have."""

    name: Literal["RichModelSummary"]
    max_depth: Annotated[int, Field(ge=-1)] = 1


def _of_the_list(value: Any) -> Any:
    name = value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str) and name in OTHER_CALLBACKS:
        raise ValueError(f"{name} is not for recipes: {OTHER_CALLBACKS[name]}")
    return value


def _no_two_alike(callbacks: Any) -> Any:
    """Lightning would take the state of the one for that of the other."""
    known: dict[str, str] = {}
    for label, callback in callbacks.items():
        what = callback.model_dump_json(include={"name", "monitor", "mode", "every_n_train_steps"})
        if known.setdefault(what, label) != label:
            raise ValueError(f"{known[what]} and {label} are the same callback; leave one out")
    return callbacks


Callback = Annotated[
    EarlyStopping | ModelCheckpoint | EMAWeightAveraging | LearningRateMonitor | DeviceStatsMonitor | RichModelSummary,
    Field(discriminator="name"),
    BeforeValidator(_of_the_list),
]
Callbacks = Annotated[dict[Name, Callback], LeaveOut, AfterValidator(_no_two_alike)]


def identity(callbacks: Mapping[str, Callback], validations: tuple[int, ...] | None) -> list[str]:
    """What of the callbacks can change the result, for the id of the artifact; nothing where there are none.

    ``validations``: how often and on what the stage is validated, None where it is not. Where a callback looks at that,
    it changes the result too.
    """
    counted = [one for one in callbacks.values() if one.changes and not (one.at_validation and validations is None)]
    parts = sorted(f"callback {one.model_dump_json()}" for one in counted)
    watched = any(hasattr(one, "monitor") for one in counted)
    return [*parts, f"validation {json.dumps(validations)}"] if watched else parts


def idle_callback(configs: Iterable[Any]) -> str | None:
    """The label of a callback that would never be asked: it acts at validations, and none of the stages has any.

    ``configs``: of all stages of a recipe, trained or not.
    """
    trained = [config for config in configs if hasattr(config, "callbacks")]
    validated = {label for config in trained for label in config.callbacks if config.validations() is not None}
    acting = (label for config in trained for label, one in config.callbacks.items() if one.at_validation)
    return next((label for label in acting if label not in validated), None)
