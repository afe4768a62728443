"""Computes the learning rate as a function of the step and of the layer."""

import math

from torch import nn

from condensery.models.encoder import Encoder


def linear_schedule(step: int, steps: int, warmup_ratio: float, first: int = 0) -> float:
    """Return the learning rate of a step divided by the peak learning rate: linear warm-up, then linear decay to zero.

    Args:
        step: index of the step, from 0.
        steps: total number of steps.
        warmup_ratio: share of the steps in which the learning rate rises.
        first: number of steps of a first phase. This phase and the remaining steps each have their own warm-up and decay.
    """
    if step < first:
        steps = first
    else:
        step, steps = step - first, steps - first
    rising = warmup_ratio * steps
    if step < rising:
        return (step + 1) / math.ceil(rising + 1e-9)
    return max(0.0, (steps - step) / max(1.0, steps - rising))


def layer_shares(module: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """Return layer-wise factors of the learning rate for each backbone's weights (ELECTRA: Clark et al. 2020, appendix B).

    The last of n layers gets the full learning rate, the layer below gets ``decay`` times that rate, and so on. The factor
    of the embeddings is decay^n. Weights outside a backbone's embeddings and layers, such as a head or the weights of a loss,
    are not in the result.

    Args:
        module: module with any number of ``Encoder`` submodules.
        decay: factor from each layer to the layer below it, in (0, 1].
    """
    shares: dict[nn.Parameter, float] = {}
    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
        for below, part in enumerate(reversed([encoder.model.embeddings, *encoder.layers])):
            shares |= dict.fromkeys(part.parameters(), decay**below)
    return shares
