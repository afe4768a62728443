"""Losses for sentence tasks, as functions of a batch's vectors (Reimers and Gurevych 2019; Gao and Callan 2021a, §4.2)."""

from torch import Tensor, nn


def cosine_regression(first: Tensor, second: Tensor, scores: Tensor) -> Tensor:
    """Return the mean squared difference between cos(u, v) and the score.

    Args:
        first, second: (b, d) the vectors u and v of each pair of sentences.
        scores: (b,) the similarity of each pair, 1 = the same meaning.
    """
    return nn.functional.mse_loss(nn.functional.cosine_similarity(first, second), scores)


def triplet_margin(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, ||a - p|| - ||a - n|| + margin), the triplet loss with Euclidean distances.

    Args:
        anchor, positive, negative: (b, d) the vectors a, p and n of each triplet.
        margin: margin between the distances.
    """
    return nn.functional.triplet_margin_loss(anchor, positive, negative, margin=margin)
