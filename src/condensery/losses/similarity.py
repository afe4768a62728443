"""Losses of sentence tasks (Reimers and Gurevych 2019; Gao and Callan 2021a, §4.2), functions of a batch's vectors."""

from torch import Tensor, nn


def cosine_regression(first: Tensor, second: Tensor, scores: Tensor) -> Tensor:
    """Mean square of cos(u, v) - score.

    Args:
        first, second: (b, d) the sentences of each pair.
        scores: (b,) how similar they are, 1 = the same.
    """
    return nn.functional.mse_loss(nn.functional.cosine_similarity(first, second), scores)


def triplet_margin(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Mean of max(0, ||a - p|| - ||a - n|| + margin), (b, d) each, in Euclidean distance."""
    return nn.functional.triplet_margin_loss(anchor, positive, negative, margin=margin)
