"""Options of Lightning that recipes may set: flags of the Trainer (``trainer.flags``) and ``trainer.callbacks``.

A recipe may come from an untrusted source. So a callback is chosen by name from a list, gets only plain values, and writes
only into the folder of its stage. This module imports neither torch nor Lightning, so that a dry run stays fast.
"""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from condensery.ranges import Count
from condensery.stages.base import LeaveOut, Name


def _logged(name: str) -> str:
    if name != "val/mrr@10" and not name.startswith("train/"):
        raise ValueError(f"{name!r} is not logged; give val/mrr@10, or a curve of training such as train/loss")
    return name


Curve = Annotated[str, AfterValidator(_logged)]

LENGTH = "steps, epochs or token_budget of the stage"
VALIDATION = "validate_every, validation_queries and validation_passages of the stage"
INSTEAD = {  # flag of the Trainer -> the keys of a recipe that replace it
    **{name: f"trainer.{name}" for name in ("accelerator", "devices", "precision", "callbacks")},
    **dict.fromkeys(("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches"), LENGTH),
    **dict.fromkeys(("limit_val_batches", "val_check_interval", "check_val_every_n_epoch"), VALIDATION),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "max_grad_norm of the stage"),
    "strategy": "trainer.devices",
    "num_nodes": "launcher.nodes",
    "logger": "the group logger",
    "log_every_n_steps": "log_every of the stage",
    "enable_checkpointing": "checkpoint_every and checkpoint_minutes of the stage",
    "enable_model_summary": "trainer.callbacks={summary: {name: RichModelSummary}}",
    "accumulate_grad_batches": "batch_size and chunk_tokens of the stage",
    "overfit_batches": "train_queries or max_passages of the stage",
    "default_root_dir": "output_root",
}


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)  # strict: true is not 1


class TrainerFlags(_Closed):
    """The arguments of Lightning's Trainer in ``trainer.flags``, for all stages that train; None = Lightning's default.

    Lightning's other flags are set by the stages and by other keys of ``trainer``, or could change a result. These flags
    change a result only by rounding. So artifact ids depend neither on these flags nor on ``trainer.compile``.
    """

    benchmark: bool | None = None
    detect_anomaly: bool | None = None
    deterministic: bool | Literal["warn"] | None = None
    profiler: Literal["simple", "advanced", "pytorch"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_those_of_other_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and (other := next((name for name in value if name in INSTEAD), None)):
            raise ValueError(f"{other} is not set here; use {INSTEAD[other]}")
        return value

    def given(self) -> dict[str, Any]:
        """Return the flags that are set."""
        return self.model_dump(exclude_none=True)


class _Callback(_Closed):
    """A callback of Lightning with its arguments; arguments that make no sense in a stage are left out.

    Attributes:
        changes: whether the callback changes the stage's product. If it does, the artifact id depends on the callback.
        everywhere: whether every training process has the callback; otherwise only the first has it.
        at_validation: whether the callback acts only at validations, and so has no effect in a stage without validation.
        name: Lightning's name of the callback.
    """

    changes: ClassVar[bool] = False
    everywhere: ClassVar[bool] = False
    at_validation: ClassVar[bool] = False
    name: str

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """Return the arguments of Lightning's class.

        Args:
            folder: folder that the callback may write into.
            validated: whether the stage is validated.
        """
        return self.model_dump(exclude={"name"})


class EarlyStopping(_Callback):
    """Ends training when ``monitor`` stops improving. It is checked after every validation."""

    changes = at_validation = True
    name: Literal["EarlyStopping"]
    monitor: Curve
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    patience: Annotated[int, Field(ge=0)] = 3
    mode: Literal["min", "max"] = "min"
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """Return Lightning's arguments. ``monitor`` is checked after each validation, not at the end of an epoch."""
        return {**super().arguments(folder, validated), "check_on_train_epoch_end": False}


class ModelCheckpoint(_Callback):
    """Keeps further checkpoints in the artifact, besides the weights of the last step; no stage reads them."""

    changes = True
    name: Literal["ModelCheckpoint"]
    monitor: Curve | None = None
    save_last: bool | None = None
    save_top_k: Annotated[int, Field(ge=-1)] = 1
    save_weights_only: bool = False
    mode: Literal["min", "max"] = "min"
    every_n_train_steps: Count | None = None

    @model_validator(mode="after")
    def _compares_what_it_keeps(self) -> Self:
        if self.monitor is None and self.save_top_k > 1:
            raise ValueError("save_top_k keeps the best by `monitor`; give a monitor, or save_top_k=-1 to keep all")
        # otherwise Lightning would compare the value of the previous validation
        if self.at_validation and self.every_n_train_steps:
            raise ValueError(f"{self.monitor} is compared at each validation; leave every_n_train_steps out")
        return self

    @property
    def at_validation(self) -> bool:  # type: ignore[override]
        """Whether the callback keeps the checkpoints of the best validations."""
        return self.monitor == "val/mrr@10"

    def arguments(self, folder: Path, validated: bool) -> dict[str, Any]:
        """Return Lightning's arguments. A resumed run overwrites the checkpoints of the steps that it repeats."""
        at_the_end = None if not validated else False  # None: Lightning decides; False: save after validations
        own = {"dirpath": folder, "enable_version_counter": False, "save_on_train_epoch_end": at_the_end}
        return {**super().arguments(folder, validated), **own}


class EMAWeightAveraging(_Callback):
    """Validates and saves an exponential moving average of the weights in place of the weights themselves.

    Until the first update, the average equals the weights.
    """

    changes = everywhere = True
    name: Literal["EMAWeightAveraging"]
    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    update_every_n_steps: Count = 1
    update_starting_at_step: Annotated[int, Field(ge=0)] | None = None


class LearningRateMonitor(_Callback):
    """Logs the learning rate of each parameter group."""

    name: Literal["LearningRateMonitor"]
    logging_interval: Literal["step", "epoch"] | None = None
    log_momentum: bool = False
    log_weight_decay: bool = False


class DeviceStatsMonitor(_Callback):
    """Logs statistics of the GPU's memory, and also of the CPU if ``cpu_stats`` is set."""

    name: Literal["DeviceStatsMonitor"]
    cpu_stats: bool = False

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.cpu_stats and importlib.util.find_spec("psutil") is None:
            raise ValueError("cpu_stats needs psutil, which is not installed: pip install psutil")
        return self


class RichModelSummary(_Callback):
    """Prints the modules and their numbers of parameters."""

    name: Literal["RichModelSummary"]
    max_depth: Annotated[int, Field(ge=-1)] = 1


def _no_two_alike(callbacks: Any) -> Any:
    """Refuse two equal callbacks, because Lightning would confuse their states."""
    known: dict[str, str] = {}
    for label, callback in callbacks.items():
        what = callback.model_dump_json(include={"name", "monitor", "mode", "every_n_train_steps"})
        if known.setdefault(what, label) != label:
            raise ValueError(f"{known[what]} and {label} are the same callback; leave one out")
    return callbacks


Callback = Annotated[
    EarlyStopping | ModelCheckpoint | EMAWeightAveraging | LearningRateMonitor | DeviceStatsMonitor | RichModelSummary,
    Field(discriminator="name"),
]
Callbacks = Annotated[dict[Name, Callback], LeaveOut, AfterValidator(_no_two_alike)]


def identity(callbacks: Mapping[str, Callback], validations: tuple[int, ...] | None) -> list[str]:
    """Return strings that describe the callbacks for the artifact id. A callback that cannot change the result is left out.

    Args:
        callbacks: callbacks by label.
        validations: interval and sample sizes of the stage's validation; None = the stage is not validated. These
            numbers are added to the strings if a callback monitors a metric.
    """
    counted = [one for one in callbacks.values() if one.changes and not (one.at_validation and validations is None)]
    parts = sorted(f"callback {one.model_dump_json()}" for one in counted)
    watched = any(hasattr(one, "monitor") for one in counted)
    return [*parts, f"validation {json.dumps(validations)}"] if watched else parts


def idle_callback(configs: Iterable[Any]) -> str | None:
    """Return the label of a callback that would never act; None if every callback acts.

    Such a callback acts only at validations, and none of the stages that have it is validated.

    Args:
        configs: configs of all stages of a recipe, with or without training.
    """
    trained = [config for config in configs if hasattr(config, "callbacks")]
    validated = {label for config in trained for label in config.callbacks if config.validations() is not None}
    acting = (label for config in trained for label, one in config.callbacks.items() if one.at_validation)
    return next((label for label in acting if label not in validated), None)
