"""The learning rate as a function of the step."""

import math


def linear_schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the learning rate of a step, divided by the peak rate: linear warm-up, then linear decay to zero.

    Args:
        step: number of the step, from 0.
        steps: number of all steps.
        warmup_ratio: share of the steps in which the rate rises.
    """
    rising = warmup_ratio * steps
    if step < rising:
        return (step + 1) / math.ceil(rising + 1e-9)
    return max(0.0, (steps - step) / max(1.0, steps - rising))
