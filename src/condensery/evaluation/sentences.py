"""Sentence tasks to numbers: Spearman's correlation for pairs with scores, accuracy for triplets."""

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # (n, d)


def spearman(first: Vectors, second: Vectors, scores: NDArray[np.floating]) -> float:
    """The rank correlation of the cosines of n pairs with their scores (n,); 0 where all of either are equal."""
    from scipy import stats  # seconds to import

    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    if np.ptp(cosines) == 0 or np.ptp(scores) == 0:
        return 0.0
    return float(stats.spearmanr(cosines, scores).statistic)


def nearer(anchor: Vectors, positive: Vectors, negative: Vectors) -> NDArray[np.float64]:
    """(n,) 1 where the positive of a triplet is nearer to the anchor than the negative, in Euclidean distance; else 0."""
    distances = [np.linalg.norm(anchor - other, axis=1) for other in (positive, negative)]
    return (distances[0] < distances[1]).astype(np.float64)
