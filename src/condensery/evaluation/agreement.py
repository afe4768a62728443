"""Summaries of the votes of several annotators: the majority on each item, a share with its interval, and agreement.

Shapes: N items, n annotators of each item, k categories.
"""

import math

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # a standard normal lies between -NORMAL_95 and NORMAL_95 with probability 0.95

Votes = NDArray[np.bool_]  # (N, n): item by annotator, True for the category that is counted


def majority(votes: Votes) -> NDArray[np.bool_]:
    """The majority vote on each item, (N, n) -> (N,): True where more than half of the votes are True; a tie is False."""
    return 2 * votes.sum(axis=1) > votes.shape[1]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share p of N trials (Wilson 1927). It stays between 0 and 1, and holds for few trials too.

    Its ends are (p + z^2 / 2N -+ z sqrt(p (1 - p) / N + z^2 / 4N^2)) / (1 + z^2 / N), z = ``NORMAL_95``. Without trials
    the interval is (0, 1).
    """
    if not trials:
        return 0.0, 1.0
    share, square = successes / trials, NORMAL_95**2 / trials
    half = NORMAL_95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    low, high = ((share + square / 2 + sign * half) / (1 + square) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


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
