"""The learning rate as a function of the step."""

import math


def linear_schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """Learning rate of step ``step`` (from 0) of ``steps`` over the peak: linear warm-up, then linear decay to zero."""
    rising = warmup_ratio * steps
    if step < rising:
        return (step + 1) / math.ceil(rising + 1e-9)
    return max(0.0, (steps - step) / max(1.0, steps - rising))
