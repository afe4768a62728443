"""Compute the positions of many stretches of one long array at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


def ranges(starts: ArrayLike, counts: ArrayLike) -> Ids:
    """Concatenate the positions start, start + 1, ..., start + count - 1 of every pair: (sum(counts),).

    ``starts`` and ``counts`` have the same, arbitrary shape. Pairs are taken in C order.
    """
    first, number = np.asarray(starts, np.int64).reshape(-1), np.asarray(counts, np.int64).reshape(-1)
    ends = number.cumsum()
    return (first - ends + number).repeat(number) + np.arange(ends[-1] if len(ends) else 0)


def around(starts: Ids, counts: Ids, hidden: Ids, hidden_counts: Ids) -> tuple[Ids, Ids]:
    """Cut a part out of each stretch, and return the two pieces that remain.

    Args:
        starts, counts: (n,) starts and counts of the stretches.
        hidden, hidden_counts: (n,) starts and counts of the parts; each part lies inside its stretch.

    Returns:
        The starts (n, 2) and counts (n, 2) of the pieces before and after each part.
    """
    before = hidden - starts
    left = np.stack([starts, hidden + hidden_counts], axis=1)
    return left, np.stack([before, counts - before - hidden_counts], axis=1)


def first_of(counts: Ids, room: Ids) -> Ids:
    """Cut the counts (n, k) of k pieces per row so that only the first ``room`` (n,) positions of a row remain: (n, k)."""
    return np.diff(np.minimum(np.cumsum(counts, axis=1), room[:, None]), axis=1, prepend=0)
