"""What every training run has in common, as plain numbers. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal

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
        checkpoint_minutes: after so many without a checkpoint there is one as well; 0 = never.
    """

    steps: int
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    precision: Precision
    seed: int
    checkpoint_every: int
    checkpoint_minutes: float
    log_every: int
    validate_every: int

    @property
    def checkpointed(self) -> bool:
        """Whether there are checkpoints at all."""
        return bool(self.checkpoint_every or self.checkpoint_minutes)

    @property
    def fused(self) -> bool:
        """Whether AdamW is one kernel. In fp16 it is not: that kernel takes the loss's scale out of the gradient by itself,
        which would be after clipping."""
        return self.precision != "fp16"

    def rate_at(self, step: int) -> float:
        """Learning rate of step ``step`` (from 0) over the peak: linear warm-up, then linear decay to zero."""
        rising = self.warmup * self.steps
        if step < rising:
            return (step + 1) / math.ceil(rising + 1e-9)
        return max(0.0, (self.steps - step) / max(1.0, self.steps - rising))
