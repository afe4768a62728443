"""Sentence tasks to numbers: Spearman's correlation for pairs with scores, accuracy for triplets."""

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # (n, d)


def spearman(first: Vectors, second: Vectors, scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """The rank correlation of the cosines of n pairs with their scores (n,), as values of the pairs: their mean is it.

    A correlation is no mean over pairs. So that it is tested and has an interval as a mean has, each pair stands for what
    it changes: its jackknife pseudo-value (Tukey 1958), n r - (n - 1) r', where r' is the correlation without the pair;
    all are moved alike so that their mean is r. Where all of either are equal, a correlation is 0.

    Returns:
        float64 (n,).
    """
    from scipy import stats  # seconds to import

    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    ranks = stats.rankdata(cosines), stats.rankdata(scores)
    whole = _correlation(*ranks)
    changes = -np.array([_correlation(*(_without(side, at) for side in ranks)) for at in range(len(scores))])
    return whole + (len(scores) - 1) * (changes - changes.mean())


def _without(ranks: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """The ranks of the others once one is gone: what stood above it moves down by one, its equals by a half."""
    return np.delete(ranks - (ranks > ranks[at]) - 0.5 * (ranks == ranks[at]), at)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Pearson's."""
    sides = [side - side.mean() for side in (first, second)] if len(first) else [first, second]
    scale = float(np.sqrt((sides[0] @ sides[0]) * (sides[1] @ sides[1])))
    return float(sides[0] @ sides[1]) / scale if scale else 0.0


def nearer(anchor: Vectors, positive: Vectors, negative: Vectors) -> NDArray[np.float64]:
    """(n,) 1 where the positive of a triplet is nearer to the anchor than the negative, in Euclidean distance; else 0."""
    distances = [np.linalg.norm(anchor - other, axis=1) for other in (positive, negative)]
    return (distances[0] < distances[1]).astype(np.float64)
