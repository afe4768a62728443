"""Callbacks: progress in tokens/s, validation on a sampled sub-corpus, and atomic writing of checkpoints."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io import TorchCheckpointIO

from condensery.distributed import from_rank_zero
from condensery.errors import UserError, close_to
from condensery.system.progress import progress
from condensery.system.signals import hear_again, leave_if_asked
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.validation import CandidateSample, PairSample, ValidationSample

WAITED = 0.05  # share of the training time; a shorter wait for batches is not reported


class Throughput(pl.Callback):
    """Shows completed steps, loss, tokens/s and remaining time. Logs tokens/s and the tokens read since the first step."""

    def __init__(self, label: str, steps: int, every: int) -> None:
        self.label, self.steps, self.every = label, steps, every
        self.tokens = 0

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokens = state_dict["tokens"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar = progress(self.label, self.steps, "steps", done=trainer.global_step)
        self.task = self.bar.__enter__()
        self.before, self.since = self.tokens, time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.tokens += pl_module.tokens
        last = trainer.global_step == self.steps
        if last:
            trainer.should_stop = True  # training ends here anyway; with this flag Lightning also logs the last step
        if last or trainer.global_step % self.every == 0:
            rate = (self.tokens - self.before) / (time.perf_counter() - self.since)
            self.before, self.since = self.tokens, time.perf_counter()
            pl_module.log("train/tokens_per_s", rate, batch_size=1)
            pl_module.log("train/tokens", float(self.tokens), batch_size=1)
            loss = trainer.callback_metrics.get("train/loss", torch.tensor(float("nan")))
            self.task.note(f"loss {float(loss):.3f} · {rate:,.0f} tokens/s")
        self.task.advance()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if hasattr(self, "bar"):
            self.bar.__exit__(None, None, None)
            del self.bar

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")


class Waiting(pl.Callback):
    """After training, prints the share of the training time that was spent waiting for batches, if it exceeds ``WAITED``."""

    def __init__(self, label: str, data: StepDataModule) -> None:
        self.label, self.data = label, data

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since, self.before = time.perf_counter(), self.data.waited

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        share = (self.data.waited - self.before) / (time.perf_counter() - self.since)
        if share > WAITED:
            more = f"set trainer.workers={self.data.workers + 2} for more processes that make batches"
            print(f"[{self.label}] training waited for batches {share:.0%} of the time; {more}", flush=True)


@contextmanager
def evaluating(trainer: pl.Trainer, module: pl.LightningModule) -> Iterator[None]:
    """Context manager for evaluation during training: without dropout and gradients, in the precision of the run."""
    training = module.training
    module.eval()
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        yield
    module.train(training)


class Validation(pl.Callback):
    """Logs MRR of the current model on a sample of dev queries and passages, every few steps and at the end.

    The hooks of the other callbacks are called as in Lightning's own validation. So a callback may swap the weights for
    validation, save a checkpoint after it, or end training. Raises ``UserError`` if a callback monitors a value that is
    not logged.
    """

    def __init__(self, sample: ValidationSample | CandidateSample | PairSample, every: int, last: int) -> None:
        self.sample, self.every, self.last = sample, every, last

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.every == 0 or trainer.global_step == self.last:
            assert isinstance(pl_module, TrainingModule)
            for callback in _others(trainer):
                callback.on_validation_start(trainer, pl_module)
                callback.on_validation_epoch_start(trainer, pl_module)
            with evaluating(trainer, pl_module):
                values = pl_module.validated(self.sample.to(pl_module.device))
            pl_module.log_dict(values, batch_size=1, logger=False)
            for logger in trainer.loggers:  # logged at once, because Lightning would wait for the next logged step
                logger.log_metrics(values, trainer.global_step - 1)
                logger.save()
            for callback in _others(trainer):
                callback.on_validation_epoch_end(trainer, pl_module)
            for callback in _others(trainer):
                _check_monitor(callback, trainer)
                callback.on_validation_end(trainer, pl_module)


def _others(trainer: pl.Trainer) -> list[pl.Callback]:
    """Return the callbacks whose validation hooks are called. The list is new, because hooks may change Lightning's list."""
    return [callback for callback in trainer.callbacks if not isinstance(callback, Validation)]  # type: ignore[attr-defined]


def _check_monitor(callback: pl.Callback, trainer: pl.Trainer) -> None:
    monitored = getattr(callback, "monitor", None)
    if monitored is not None and monitored not in trainer.callback_metrics:
        raise UserError(
            f"callbacks: {type(callback).__name__} monitors {monitored}, which is not logged"
            f"{close_to(monitored, trainer.callback_metrics)}"
        )


class EndTogether(pl.Callback):
    """Ends training in all processes if a callback ended it in the first process, after a validation."""

    def __init__(self, every: int, last: int) -> None:
        self.every, self.last = every, last

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.every == 0 and trainer.global_step < self.last:
            trainer.should_stop = from_rank_zero(trainer.should_stop)


class EMAWeightAveraging(pl.callbacks.EMAWeightAveraging):
    """Lightning's callback with one change: the average equals the current weights until its first update.

    In Lightning's own callback, the average consists of the initial weights until then. These weights would be validated, and
    would be the result if training ended before the first update.
    """

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *more: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *more)
        if self._average_model is not None and not self._latest_update_step:
            self._average_model.module.load_state_dict(pl_module.state_dict())


class Checkpoints(pl.callbacks.Checkpoint):
    """Writes checkpoints, and keeps only the newest one.

    The old checkpoint is deleted once the new one is complete. No checkpoint is written at the step at which a callback
    ends training, because a run that resumed from such a checkpoint would continue training.

    Args:
        folder: folder of the checkpoints.
        every: number of steps between two checkpoints; 0 = never.
        minutes: a checkpoint is also written after this number of minutes without one, for slow steps; 0 = never.
    """

    def __init__(self, folder: Path, every: int, minutes: float) -> None:
        self.folder, self.every, self.minutes = folder, every, minutes

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.written = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        late = self.minutes and time.monotonic() - self.written >= 60 * self.minutes
        ended = trainer.should_stop and trainer.global_step < trainer.max_steps
        if ended or (not late and (not self.every or trainer.global_step % self.every)):
            return
        self.write(trainer)

    def write(self, trainer: pl.Trainer) -> None:
        """Write the checkpoint of this step."""
        path = self.folder / f"step={trainer.global_step}.ckpt"
        trainer.save_checkpoint(path)
        for other in set(self.folder.glob("step=*.ckpt")) - {path}:
            other.unlink()
        self.written = time.monotonic()


class LeaveWhenAsked(pl.Callback):
    """Writes a checkpoint and ends all processes after a step in which one of them received a signal to end.

    At the step at which training ends anyway, the callback does nothing, because a run that resumed from a checkpoint of this
    step would continue training.

    Args:
        checkpoints: callback that writes the checkpoint in the first process; None = this process writes no checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self.checkpoints = checkpoints

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        hear_again()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainingModule)
        ends = trainer.should_stop or trainer.global_step == trainer.max_steps
        if pl_module.asked_to_leave and not ends:
            if self.checkpoints is not None:
                self.checkpoints.write(trainer)
            trainer._logger_connector.update_train_step_metrics()  # Lightning logs a step after its callbacks
            leave_if_asked()
            raise SystemExit(0)  # another process received the signal


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint under a temporary name and renames it once it is complete. Checks each checkpoint that it reads.

    A checkpoint is a ZIP archive. PyTorch writes the archive's checksums but does not verify them, so this class verifies
    them. Checkpoints are loaded with ``weights_only``, so no pickled code is run.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        temporary = Path(path).with_suffix(".partial")
        super().save_checkpoint(checkpoint, temporary, storage_options)
        os.replace(temporary, path)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint. Raises ``UserError`` if the file is damaged."""
        try:
            if bad := ZipFile(path).testzip():
                raise BadZipFile(f"{bad} has changed")
            return super().load_checkpoint(path, map_location, weights_only)
        except (BadZipFile, OSError, EOFError, RuntimeError, ValueError, UnpicklingError) as error:
            reason = [*str(error).strip().splitlines(), type(error).__name__][0]
            raise UserError(f"{path}: this checkpoint cannot be read ({reason}); delete it to train anew") from None
