"""Summaries of the votes of several annotators: the majority on each item, a share with its interval, and agreement.

Shapes: N items, n annotators of each item, k categories.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Votes = NDArray[np.bool_]  # (N, n): item by annotator, True for the category that is counted


def majority(votes: Votes) -> NDArray[np.bool_]:
    """The majority vote on each item, (N, n) -> (N,): True where more than half of the votes are True; a tie is False."""
    return 2 * votes.sum(axis=1) > votes.shape[1]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927). It stays between 0 and 1, and holds for few trials too.

    Without trials the interval is (0, 1).
    """
    from scipy import stats  # seconds to import

    if not trials:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def fleiss_kappa(counts: NDArray[np.integer]) -> float:
    """Agreement beyond chance (Fleiss 1971, "Measuring nominal scale agreement among many raters").

    kappa = (P - E) / (1 - E). P is the mean over items of the share of agreeing pairs of annotators,
    (sum_j counts_ij^2 - n) / (n (n - 1)). E = sum_j p_j^2, with p_j the share of category j in all votes.

    Args:
        counts: (N, k), how many of the n annotators put item i into category j; each row has the sum n.

    Returns:
        kappa; NaN where it is not defined: all votes are in one category, there is one annotator, or there is no item.

    Raises:
        ValueError: when the rows do not have the same sum.
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
    """Sum up the votes (pairs, annotators) on pairs of one kind. ``kappa`` is ``None`` where it is not defined."""
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
