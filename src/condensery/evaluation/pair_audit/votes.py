"""Summarise the votes of several annotators: the majority vote, a share with confidence interval, and the agreement.

Shapes: N items, n annotators per item, k categories.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Votes = NDArray[np.bool_]  # (N, n): items by annotators, True for the category that is counted


def majority(votes: Votes) -> NDArray[np.bool_]:
    """Return the majority vote on each item, (N, n) -> (N,): True if more than half of the votes are True."""
    return 2 * votes.sum(axis=1) > votes.shape[1]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson 1927). It stays within 0 and 1, and also suits few trials.

    Without trials the interval is (0, 1).
    """
    from scipy import stats  # takes seconds to import

    if not trials:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def fleiss_kappa(counts: NDArray[np.integer]) -> float:
    """Compute the agreement beyond chance (Fleiss 1971, "Measuring nominal scale agreement among many raters").

    kappa = (P - E) / (1 - E). P is the mean over items of the share of agreeing pairs of annotators,
    (sum_j counts_ij^2 - n) / (n (n - 1)). E = sum_j p_j^2, where p_j is the share of category j in all votes.

    Args:
        counts: (N, k), number of the n annotators who put item i into category j; each row sums to n.

    Returns:
        kappa; NaN if it is undefined, because all votes are in one category, there is one annotator, or there is no item.

    Raises:
        ValueError: the rows have different sums.
    """
    if not counts.size:
        return math.nan
    sums = counts.sum(axis=1)
    annotators = int(sums[0])
    if (sums != annotators).any():
        raise ValueError("every item needs the same number of votes")
    shares = counts.sum(axis=0) / counts.sum()
    if annotators < 2 or (shares == 1).any():
        return math.nan
    agreeing = ((counts.astype(np.int64) ** 2).sum(axis=1) - annotators) / (annotators * (annotators - 1))
    by_chance = float((shares**2).sum())
    return (float(agreeing.mean()) - by_chance) / (1 - by_chance)


def judged(votes: Votes) -> dict[str, Any]:
    """Summarise the votes (pairs, annotators) on the pairs of one kind. ``kappa`` is ``None`` if it is undefined."""
    high, pairs = int(majority(votes).sum()), len(votes)
    says_high = votes.sum(axis=1)
    kappa = fleiss_kappa(np.stack([says_high, votes.shape[1] - says_high], axis=1))
    return {
        "pairs": pairs,
        "annotators": votes.shape[1],
        "high": high,
        "share": high / pairs,
        "interval": list(wilson(high, pairs)),
        "kappa": None if math.isnan(kappa) else kappa,
    }
