"""Metrics of sentence tasks: Spearman's correlation for pairs with scores, accuracy for triplets."""

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # (n, d)


def spearman(first: Vectors, second: Vectors, scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return one value for each of n pairs, whose mean is Spearman's rank correlation r of the cosines and the scores.

    Significance tests and confidence intervals need a mean over pairs, which a correlation is not. Each pair therefore gets
    its jackknife pseudo-value (Tukey 1958), n r - (n - 1) r', where r' is the correlation without the pair. All values are
    shifted by the same number so that their mean is r. A correlation is 0 if all cosines or all scores are equal.

    Args:
        first, second: (n, d) embeddings of the two sentences of each pair.
        scores: (n,) scores of the pairs.

    Returns:
        float64 (n,); the mean is r.
    """
    from scipy import stats  # takes seconds to import

    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    ranks = stats.rankdata(cosines), stats.rankdata(scores)
    whole = _correlation(*ranks)
    changes = -np.array([_correlation(*(_without(side, at) for side in ranks)) for at in range(len(scores))])
    return whole + (len(scores) - 1) * (changes - changes.mean())


def _without(ranks: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Return the ranks without the item ``at``: larger ranks decrease by one, equal ranks by a half."""
    return np.delete(ranks - (ranks > ranks[at]) - 0.5 * (ranks == ranks[at]), at)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Pearson's correlation; 0 if one of the two arrays is constant."""
    sides = [side - side.mean() for side in (first, second)] if len(first) else [first, second]
    scale = float(np.sqrt((sides[0] @ sides[0]) * (sides[1] @ sides[1])))
    return float(sides[0] @ sides[1]) / scale if scale else 0.0


def nearer(anchor: Vectors, positive: Vectors, negative: Vectors) -> NDArray[np.float64]:
    """Return (n,): 1 if a triplet's positive is nearer to the anchor than the negative (Euclidean distance), else 0."""
    distances = [np.linalg.norm(anchor - other, axis=1) for other in (positive, negative)]
    return (distances[0] < distances[1]).astype(np.float64)
