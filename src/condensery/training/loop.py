"""The one training loop: a LightningModule and a LightningDataModule to a trained model, resumable at any moment."""

import logging
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import Logger

from condensery.errors import UserError
from condensery.training.callbacks import AtomicCheckpointIO, Throughput, Validation, ValidationSample
from condensery.training.data import StepDataModule
from condensery.training.logs import csv_logger, last_values, merge_parts
from condensery.training.modules import TrainingModule

CHECKPOINTS = "checkpoints"
_PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def fit(
    module: TrainingModule,
    data: StepDataModule,
    folder: Path,
    label: str,
    *,
    accelerator: str = "cpu",
    loggers: list[Logger] | None = None,
    sample: ValidationSample | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, float]:
    """Train ``module`` for its settings' number of steps, from the last checkpoint in ``folder`` where there is one.

    Args:
        module: trained in place.
        data: the batches.
        folder: gets logs/metrics.csv; checkpoints lie here until the training is complete.
        label: shown beside the progress.
        accelerator: cpu, gpu or auto.
        loggers: besides the CSV.
        sample: for validation; None = no validation.
        callbacks: besides the loop's own, called before them.

    Returns:
        the last logged values: losses, validation.

    Raises:
        UserError: fp16 without a GPU, a gradient that is not finite, a checkpoint that cannot be read.
    """
    settings = module.settings
    if settings.precision == "fp16" and accelerator == "cpu":
        raise UserError("trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    _quieten()
    checkpoint = last_checkpoint(folder)
    called = [*callbacks, Throughput(label, settings.steps, max(1, settings.log_every))]
    if settings.checkpoint_every:
        called.append(_checkpoints(folder, settings.checkpoint_every))
    if sample is not None and settings.validate_every:
        called.append(Validation(sample, settings.validate_every, settings.steps))
    trainer = pl.Trainer(
        max_steps=settings.steps,
        accelerator=accelerator,
        devices=1,
        precision=_PRECISIONS[settings.precision],
        logger=[csv_logger(folder, first_step(folder)), *(loggers or [])],
        callbacks=called,
        plugins=[AtomicCheckpointIO()],
        log_every_n_steps=max(1, settings.log_every),
        enable_checkpointing=bool(settings.checkpoint_every),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    torch.manual_seed(settings.seed)
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    if trainer.global_step != settings.steps:
        raise KeyboardInterrupt  # Lightning returns quietly from Ctrl-C
    values = last_values(merge_parts(folder))  # all of them where the last checkpoint was of the last step
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    values |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {name: values[name] for name in sorted(values) if "/" in name}


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step in a stage's folder, or None."""
    return max((folder / CHECKPOINTS).glob("step=*.ckpt"), key=_step_of, default=None)


def first_step(folder: Path) -> int:
    """The step that a training in this folder begins with."""
    checkpoint = last_checkpoint(folder)
    return _step_of(checkpoint) if checkpoint else 0


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step="))


def _checkpoints(folder: Path, every: int) -> ModelCheckpoint:
    """Keep the newest checkpoint; the old one goes when the new one is whole."""
    return ModelCheckpoint(
        dirpath=folder / CHECKPOINTS,
        filename="{step}",
        every_n_train_steps=every,
        save_top_k=1,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )


def _quieten() -> None:
    """Lightning's tips and hardware lines are not for the people who read our progress."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", module="lightning_fabric")
