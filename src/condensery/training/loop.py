"""The training loop: trains a LightningModule on a LightningDataModule, and resumes a run from its last checkpoint."""

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.loggers import Logger
from pytorch_lightning.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

from condensery.distributed import from_rank_zero, processes, rank
from condensery.errors import UserError
from condensery.models.encoder import compiled as compiled_layers
from condensery.models.precision import precision_on
from condensery.system.signals import after_this_step
from condensery.training.callbacks import (
    AtomicCheckpointIO,
    Checkpoints,
    EndTogether,
    LeaveWhenAsked,
    Throughput,
    Validation,
    Waiting,
)
from condensery.training.data.data_module import StepDataModule
from condensery.training.loggers import LOGS, csv_logger, last_values, merge_parts
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.resumption import CHECKPOINTS, first_step, last_checkpoint
from condensery.training.settings import LoopSettings
from condensery.training.validation import CandidateSample, PairSample, ValidationSample

_PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Restore torch's flags ``deterministic`` and ``benchmark`` after training, because they apply to the whole process.

    Raises:
        UserError: an operation in training has no deterministic implementation.
    """
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" in str(error):
            reason = str(error).partition(",")[0]
            raise UserError(f"trainer.flags.deterministic: {reason}; set it to warn to allow such operations") from None
        raise
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark


@_torch_as_it_was()
def fit(
    module: TrainingModule,
    data: StepDataModule,
    settings: LoopSettings,
    folder: Path,
    label: str,
    *,
    accelerator: str = "cpu",
    compiled: bool = False,
    loggers: list[Logger] | None = None,
    sample: ValidationSample | CandidateSample | PairSample | None = None,
    callbacks: Sequence[Callback] = (),
    flags: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Train ``module`` for ``settings.steps`` steps, or until a callback ends training.

    Training resumes from the last checkpoint in ``folder``, if there is one. Processes that are joined by
    ``torch.distributed`` must all call this function. The processes share each batch, and end with the weights that a single
    process would reach. Only the first process writes, logs and validates. The other processes return no values.

    Args:
        module: the module, trained in place.
        data: data module that gives the batches.
        settings: number of steps, precision, and intervals of logs, validation and checkpoints.
        folder: folder of logs/metrics.csv, and of the checkpoints until training is complete.
        label: name shown beside the progress.
        accelerator: cpu, gpu or auto.
        compiled: whether torch compiles the layers.
        loggers: loggers besides the CSV logger.
        sample: validation sample; None = no validation.
        callbacks: further callbacks, called before the loop's own callbacks. If a callback ends training early,
            ``module.global_step`` is the number of completed steps.
        flags: further arguments of ``pl.Trainer``; ``profiler`` is given by its name, and writes beside the logs.

    Returns:
        the last logged values of losses and validation.

    Raises:
        UserError: the device does not support the precision, a gradient is not finite, a checkpoint cannot be read, or
            torch cannot compile the layers.
    """
    first = rank() == 0
    gpu = accelerator != "cpu" and torch.cuda.is_available()
    precision_on("cuda" if gpu else "cpu", settings.precision, "trainer.precision")
    _quieten()
    checkpoint = from_rank_zero(last_checkpoint(folder))
    called, checkpoints = [*callbacks], None
    if first:
        called += [Throughput(label, settings.steps, max(1, settings.log_every)), Waiting(label, data)]
        if settings.checkpointed:
            checkpoints = Checkpoints(folder / CHECKPOINTS, settings.checkpoint_every, settings.checkpoint_minutes)
            called.append(checkpoints)
        if sample is not None and settings.validate_every:
            called.append(Validation(sample, settings.validate_every, settings.steps))
    if sample is not None and settings.validate_every and processes() > 1:
        called.append(EndTogether(settings.validate_every, settings.steps))
    if settings.checkpointed:
        called.append(LeaveWhenAsked(checkpoints))
    given = dict(flags or {})
    profiler = given.pop("profiler", None)
    trainer = pl.Trainer(
        max_steps=settings.steps,
        accelerator=accelerator,
        devices=[torch.cuda.current_device()] if gpu else 1,
        precision=_PRECISIONS[settings.precision],
        logger=[csv_logger(folder, first_step(folder)), *(loggers or [])] if first else False,
        callbacks=called,
        plugins=[AtomicCheckpointIO(), LightningEnvironment()],  # Lightning then does not look for other processes
        log_every_n_steps=max(1, settings.log_every),
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in called),
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,  # the callback ``Validation`` validates instead, at any step
        default_root_dir=folder,
        profiler=_PROFILERS[profiler](dirpath=folder / LOGS, filename="profile") if profiler and first else None,
        **given,
    )
    torch.manual_seed(module.seed)
    data.epoch = settings.steps  # Lightning acts at the end of each epoch, so the whole run counts as one epoch
    module.train()  # loaded models are in evaluation mode, and Lightning does not change the mode
    patient = after_this_step() if settings.checkpointed else nullcontext()
    with compiled_layers() if compiled else nullcontext(), patient:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    if trainer.global_step != settings.steps and (trainer.interrupted or not trainer.should_stop):
        raise KeyboardInterrupt  # Lightning may return after Ctrl-C without an error; a callback sets ``should_stop``
    if not first:
        return {}
    values = last_values(merge_parts(folder))  # the only values if training resumed from a checkpoint of the last step
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    values |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {name: values[name] for name in sorted(values) if "/" in name}


def _quieten() -> None:
    """Silence Lightning's tips and hardware messages, which would interrupt the progress display."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", module="lightning_fabric")
