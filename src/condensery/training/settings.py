"""The settings that every training run has. The module imports no torch."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from condensery.errors import UserError
from condensery.ranges import CountOrZero, Positive, PositiveShare, Share, Weight

Precision = Literal["fp32", "bf16", "fp16"]
TRAINER_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true")  # those in which AdamW can train


class Optimiser(TypedDict, total=False):
    """The keyword arguments that every training module takes; ``TrainingModule`` explains them."""

    learning_rate: Positive | None
    warmup_ratio: Share
    weight_decay: Weight
    max_grad_norm: Weight
    seed: CountOrZero
    layer_decay: PositiveShare


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the training loop: number of steps, precision, and intervals of logs, validation and checkpoints.

    Attributes:
        steps: number of optimisation steps, one batch each.
        precision: fp32, or mixed bf16 or fp16.
        checkpoint_every, log_every, validate_every: number of steps between two checkpoints, logs or validations; 0 = never.
        checkpoint_minutes: a checkpoint is also written when the last one is this many minutes old; 0 = never.
    """

    steps: int
    precision: Precision = "fp32"
    checkpoint_every: int = 0
    checkpoint_minutes: float = 0
    log_every: int = 1
    validate_every: int = 0

    @property
    def checkpointed(self) -> bool:
        """Whether checkpoints are written at all."""
        return bool(self.checkpoint_every or self.checkpoint_minutes)


def check_trainer_precision(precision: str) -> None:
    """Raise ``UserError`` for a Lightning precision in which AdamW does not work, such as fp16 weights."""
    if precision not in TRAINER_PRECISIONS:
        raise UserError(f"Trainer(precision={precision!r}): AdamW fails with it; use {', '.join(TRAINER_PRECISIONS)}")
