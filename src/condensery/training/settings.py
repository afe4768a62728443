"""What every training run has in common, as plain numbers. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from condensery.errors import UserError

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainingSettings:
    """How one model is optimised.

    Attributes:
        steps: optimisation steps, one batch each.
        learning_rate: the peak.
        warmup: share of the steps in which the rate rises linearly from zero; then it falls linearly to zero.
        weight_decay: of AdamW; biases and LayerNorm weights are not decayed.
        clip: largest norm of the gradient; 0 = no clipping.
        precision: fp32, or mixed bf16 or fp16.
        seed: of weights, dropout, batches, masks and negatives.
        checkpoint_every, log_every, validate_every: steps; 0 = never.
    """

    steps: int
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    precision: Precision
    seed: int
    checkpoint_every: int
    log_every: int
    validate_every: int

    def rate_at(self, step: int) -> float:
        """Learning rate of step ``step`` (from 0) over the peak: linear warm-up, then linear decay to zero."""
        rising = self.warmup * self.steps
        if step < rising:
            return (step + 1) / math.ceil(rising + 1e-9)
        return max(0.0, (self.steps - step) / max(1.0, self.steps - rising))


def number_of_steps(steps: int | None, epochs: float | None, steps_an_epoch: int, key: str) -> int:
    """Steps from whichever of the two is given. ``key`` names the stage in the error when both or none are."""
    if (steps is None) == (epochs is None):
        raise UserError(f"{key}: give either steps or epochs, and set the other to null")
    return steps if steps is not None else max(1, round((epochs or 0) * steps_an_epoch))
