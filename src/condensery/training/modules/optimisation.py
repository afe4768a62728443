"""The base class of the LightningModules. Each optimisation step passes one batch through the gradient cache.

Each module takes a model, or the folder or hub name of a checkpoint. It trains in any ``pl.Trainer`` on one of the data
modules. The modules use Lightning's manual optimisation, in which Lightning refuses its own options for gradient clipping
and accumulation. Use ``max_grad_norm`` to clip instead, and the data module's ``chunk_tokens`` to split a large batch.
"""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from condensery.distributed import any_of, average, copy_first_weights, rank, replicated, sum_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder, backpropagate
from condensery.models.dropout import seed_torch
from condensery.randomness import hash64
from condensery.ranges import CountOrZero, Positive, PositiveShare, Share, Weight, check_values
from condensery.system import signals
from condensery.tokens.batches import Chunk
from condensery.training.data.steps import Batch
from condensery.training.learning_rate import layer_shares, linear_schedule
from condensery.training.resumption import Resumption, Schedule, keep_own_settings
from condensery.training.settings import check_trainer_precision
from condensery.training.validation import CandidateSample, mean_reciprocal_rank, mean_reciprocal_ranks

PathOrName = str | Path
CUTOFFS = 10, 100  # values k of MRR@k on a ``CandidateSample``


class TrainingModule(pl.LightningModule):
    """The base class of all training modules: AdamW, learning-rate schedule, clipping and logging.

    The gradient of a step is accumulated chunk by chunk, so a batch of any size needs the memory of one chunk. With several
    processes (``strategy="ddp"``) each process accumulates the gradient of its share of the batch. The processes exchange
    gradients once per step. The resulting weights are those that a single process would reach.

    Args:
        model: the model that is trained.
        learning_rate: peak learning rate; None = ``usual_rate`` of the class, the papers' value.
        warmup_ratio: share of the steps in which the learning rate rises linearly from zero. Then the rate falls linearly, to
            zero at the trainer's last step.
        weight_decay: weight decay of AdamW; biases and LayerNorm weights are not decayed.
        max_grad_norm: largest norm of a gradient, to which larger gradients are clipped; 0 = no clipping.
        seed: seed of dropout, and of randomly initialised weights.
        layer_decay: learning rate of a backbone layer, as a multiple of the learning rate of the layer above it; 1 = all
            layers have the same learning rate. See ``layer_shares``.

    Attributes:
        tokens: number of tokens that all processes together read in the last step, padding not counted.
        trained_on: the data modules that this module can be trained on: value of a data module's attribute ``pairs`` ->
            Python code that creates such a data module. The error line about an unsuitable data module shows this code.
        usual_rate: default peak learning rate, as in ``conf/stage/``.
        first_steps: number of steps of a first phase, which has a warm-up and a decay of its own; 0 = no such phase.
        asked_to_leave: whether one of the processes received a signal to end, such as SLURM's warning.

    Raises:
        UserError: a number is out of its range.
    """

    tokens: int
    trained_on: ClassVar[Mapping[Any, str]] = {}
    usual_rate: ClassVar[float] = 1e-4
    first_steps = 0
    asked_to_leave = False

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: Positive | None = None,
        warmup_ratio: Share = 0.1,
        weight_decay: Weight = 0.01,
        max_grad_norm: Weight = 1.0,
        seed: CountOrZero = 42,
        layer_decay: PositiveShare = 1.0,
    ) -> None:
        check_values(type(self), locals())
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.learning_rate = self.usual_rate if learning_rate is None else learning_rate
        self.warmup_ratio, self.weight_decay = warmup_ratio, weight_decay
        self.max_grad_norm, self.seed, self.layer_decay = max_grad_norm, seed, layer_decay
        self._norm: Tensor | None = None
        self._resumption = Resumption(self)

    def objective(self, batch: Any) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder for the chunks of ``batch``, and the loss over all vectors of the batch; None = no such loss."""
        raise NotImplementedError

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the retrieval vectors (b, d) of a chunk, for validation."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Raise ``UserError`` if the precision or a callback does not fit training, or if no weight requires a gradient."""
        self._resumption = Resumption(self)
        if stage == "fit":
            check_trainer_precision(str(self.trainer.precision))
            if not any(weight.requires_grad for weight in self.parameters()):  # before DDP raises its own error
                raise UserError("nothing is trained: no weight has requires_grad=True")
            if any(isinstance(callback, BatchSizeFinder) for callback in self.trainer.callbacks):  # type: ignore[attr-defined]
                raise UserError("BatchSizeFinder: memory depends on chunk_tokens and not on batch_size; leave it out")

    def configure_optimizers(self) -> Any:
        """Make AdamW and the linear schedule; ``training_step`` steps the schedule.

        Raises:
            UserError: the trainer has no last step, or its last step is before the step of the checkpoint.
        """
        self._steps, epoch = self._last_step(), self._batches_an_epoch()
        by_epochs = epoch and self._steps == (self.trainer.max_epochs or -1) * epoch
        self._resumption.check_length(self._steps, epoch if by_epochs else None)
        self._peak = self.learning_rate
        optimiser = torch.optim.AdamW(self._groups(), lr=self._peak, fused=not self._scaled())
        optimiser.register_load_state_dict_pre_hook(keep_own_settings)
        rate = partial(linear_schedule, steps=self._steps, warmup_ratio=self.warmup_ratio, first=self.first_steps)
        return {"optimizer": optimiser, "lr_scheduler": Schedule(optimiser, rate)}

    def _last_step(self) -> int:
        """Return the number of steps that the trainer will make."""
        trainer: Any = self.trainer
        epochs, most, each = trainer.max_epochs or -1, trainer.max_steps, self._batches_an_epoch()
        if epochs < 0 and most < 0:
            raise UserError("the learning rate schedule needs the last step; give the Trainer max_steps or max_epochs")
        if epochs < 0 or each is None:
            return int(trainer.estimated_stepping_batches)
        # Lightning's own count would open the loader before the checkpoint is loaded, so at the wrong step.
        return min(epochs * each, most) if most >= 0 else epochs * each

    def _batches_an_epoch(self) -> int | None:
        """Return the number of batches that Lightning counts as an epoch; None for a data module of another package."""
        return self._data.batches_an_epoch() if hasattr(self._data, "batches_an_epoch") else None

    def on_fit_start(self) -> None:
        """Raise ``UserError`` if the data module does not fit this module, or if the trainer shards the weights.

        The gradient cache does not support sharded weights.
        """
        self.check_kind(self._data)
        if not isinstance(self.trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            name = type(self.trainer.strategy).__name__
            raise UserError(f"Trainer(strategy=...): {name} is not supported; use one device or strategy='ddp'")

    def check_kind(self, data: Any) -> None:
        """Raise ``UserError`` if ``data`` is a data module of a kind that this module is not trained on."""
        if self.trained_on and hasattr(data, "pairs") and data.pairs not in self.trained_on:
            fitting = ", ".join(dict.fromkeys(self.trained_on.values()))
            raise UserError(
                f"{type(self).__name__} is trained on {fitting}; {type(data).__name__}(pairs={data.pairs!r}) does not fit"
            )

    def on_train_start(self) -> None:
        """Give all processes the weights of the first process, and the schedule a new ``learning_rate``.

        Raise ``UserError`` for a loader of a data module that the trainer does not have; such a loader knows no step.
        """
        data = getattr(self.trainer.train_dataloader, "data_module", None)
        if data and data.trainer != self.trainer:
            raise UserError(f"{type(self).__name__}: give Trainer.fit the {type(data).__name__}, and not its loader")
        copy_first_weights(self)
        schedule: Any = self.lr_schedulers()
        share = self.learning_rate / self._peak
        if share != 1 and isinstance(schedule, Schedule):  # LearningRateFinder set ``learning_rate`` after ``_peak``
            schedule.set_peaks([rate * share for rate in schedule.base_lrs])
            self._peak = self.learning_rate
        self._resumption.tell(self._steps)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Run one optimisation step: back-propagate through the gradient cache, clip the gradient, update the weights.

        Returns:
            the loss, without a gradient, for Lightning's callbacks: ``LearningRateFinder`` reads it.

        Raises:
            UserError: the batch is not of a data module of this package.
        """
        if not isinstance(batch, Batch):
            fitting = ", ".join(dict.fromkeys(self.trained_on.values())) or "the data modules of condensery"
            raise UserError(
                f"{type(self).__name__} is trained on {fitting}; a loader of {type(batch).__name__} does not fit"
            )
        # Dropout depends on (seed, step, rank) alone, so a resumed run has the dropout of an uninterrupted run.
        others = [rank()] if rank() else []  # the first process has the dropout of a run in one process
        seed_torch(hash64(self.seed, "dropout", self.global_step, *others) >> 1)
        optimiser: Any = self.optimizers()
        optimiser.zero_grad()
        with replicated(batch.replicated), self._without_exchange_of_ddp():
            encoder, contrast = self.objective(batch)
            budget = getattr(self._data, "chunk_tokens", 0)
            losses = backpropagate(encoder, batch.chunks, contrast, self.manual_backward, budget=budget)
            self.tokens = sum_of(batch.tokens)
        self.asked_to_leave = any_of(bool(signals.came))
        losses = average(self.parameters(), losses)
        rate = optimiser.param_groups[0]["lr"]
        optimiser.step()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:  # Lightning's weight averaging (SWA) removes the schedule for an epoch
            schedule.step()
        loss = torch.stack(list(losses.values())).sum()
        self._record({"loss": loss, **losses, "lr": rate})
        return loss.detach()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log MRR@10 over the sample as ``val/mrr@10``."""
        self.log_dict(self.validated(batch), batch_size=1, sync_dist=True)

    def validated(self, sample: Any) -> dict[str, float]:
        """Return the metrics of a sample that are logged: MRR@10, and for a ``CandidateSample`` also MRR@100."""
        if isinstance(sample, CandidateSample):
            found = mean_reciprocal_ranks(self.vectors, sample, CUTOFFS)
            return {f"val/mrr@{k}": value for k, value in zip(CUTOFFS, found, strict=True)}
        return {"val/mrr@10": mean_reciprocal_rank(self.vectors, sample)}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient, and log its norm before clipping."""
        self._norm = nn.utils.clip_grad_norm_(self.parameters(), self.max_grad_norm or float("inf"), foreach=True)
        self._record({"grad_norm": self._norm})
        # Reading the norm from a GPU makes the CPU wait. So on a GPU only logged steps and the last step are checked.
        step, logged = self.global_step + 1, max(1, getattr(self.trainer, "log_every_n_steps", 1))
        if self._norm.device.type == "cpu" or step == self._steps or step % logged == 0:
            self._check_norm(self.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the entries that ``on_load_checkpoint`` reads. Raise ``UserError`` if the last gradient is not finite."""
        self._check_norm(self.global_step - 1)
        self._resumption.save(checkpoint, self._steps, self._batches_an_epoch())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise ``UserError`` if the trainer cannot resume from the checkpoint, see ``Resumption``."""
        if self._trainer is not None:
            self._resumption.load(checkpoint)

    def _check_norm(self, step: int) -> None:
        if self._norm is not None and not self._scaled() and not self._norm.isfinite():
            begun = (name for name, weight in self.named_parameters() if step == 0 and not weight.isfinite().all())
            broken = next(begun, None)
            raise UserError(
                f"the gradient is not finite at step {step}; lower learning_rate, raise warmup_ratio or set max_grad_norm"
                + (f"; or take another checkpoint, because {broken} in this one is not finite" if broken else "")
            )

    def _scaled(self) -> bool:
        """Return whether the loss is scaled, as in fp16.

        A scaled loss rules out AdamW's fused kernel, which would remove the scale from the gradient only after clipping. With
        a scaled loss, a gradient that is not finite is not an error, because the loss scaler skips the step.
        """
        return "16" in str(self.trainer.precision) and "bf16" not in str(self.trainer.precision)

    def _without_exchange_of_ddp(self) -> AbstractContextManager[Any]:
        """Switch off DDP's gradient exchange in each chunk's backward pass; ``average`` exchanges once per step instead."""
        model = self.trainer.strategy.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    @property
    def process_changes(self) -> list[str]:
        """The steps at which this run went on with another number of processes, in words."""
        return self._resumption.changes

    @property
    def _data(self) -> Any:
        """The trainer's data module; None if there is no data module or no trainer yet."""
        return getattr(self._trainer, "datamodule", None)

    def _record(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.log(f"train/{name}", value, batch_size=1)

    def _groups(self) -> list[dict[str, Any]]:
        """Return AdamW's parameter groups: weights with the same share of the learning rate and the same weight decay.

        Weights with the full learning rate come first, because the learning rate of the first group is logged. Weight decay
        applies to matrices, and not to biases and LayerNorm weights, which have one dimension.
        """
        shares = self.rate_shares()
        return [
            {"params": group, "weight_decay": decay, "lr": self.learning_rate * share}
            for share in dict.fromkeys([1.0, *sorted(shares.values(), reverse=True)])
            for decay, matrix in ((self.weight_decay, True), (0.0, False))
            if (group := [one for one in self.parameters() if (one.ndim > 1, shares.get(one, 1.0)) == (matrix, share)])
        ]

    def rate_shares(self) -> dict[nn.Parameter, float]:
        """Return the factor of the learning rate for each weight; weights that are not listed get the full learning rate."""
        return layer_shares(self, self.layer_decay) if self.layer_decay < 1 else {}

    def _remember(self, given: Mapping[str, Any], **others: Any) -> None:
        """Keep arguments of ``__init__`` for ``load_from_checkpoint``, to which models and losses must be passed again.

        Args:
            given: local variables of the ``__init__`` of a class; only its arguments are kept.
            others: further values to keep.
        """
        taken = inspect.signature(given["__class__"].__init__).parameters.values()
        passed_on: Mapping[str, Any] = next((given[one.name] for one in taken if one.kind is one.VAR_KEYWORD), {})
        named = {one.name: given[one.name] for one in taken if one.kind is not one.VAR_KEYWORD and one.name != "self"}
        kept = {**named, **passed_on, **others}
        kept = {name: value for name, value in kept.items() if not isinstance(value, nn.Module)}
        kept = {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}
        self.save_hyperparameters(kept, logger="model" in self.hparams or "model" in kept)
