"""Many stretches of one long array at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


def ranges(starts: ArrayLike, counts: ArrayLike) -> Ids:
    """The positions start, start + 1, ..., start + count - 1 of every pair, one behind the other: (sum(counts),).

    Both may have any shape, the same one; pairs are taken in C order.
    """
    first, number = (np.asarray(values, dtype=np.int64).reshape(-1) for values in (starts, counts))
    before = np.cumsum(number) - number
    return np.repeat(first - before, number) + np.arange(number.sum(), dtype=np.int64)


def around(starts: Ids, counts: Ids, hidden: Ids, hidden_counts: Ids) -> tuple[Ids, Ids]:
    """What is left of stretches when a part of each, which lies inside of it, is cut out.

    All arguments are (n,). Returns the starts (n, 2) and counts (n, 2) of what stands before and behind each part.
    """
    before = hidden - starts
    left = np.stack([starts, hidden + hidden_counts], axis=1)
    return left, np.stack([before, counts - before - hidden_counts], axis=1)


def first_of(counts: Ids, room: Ids) -> Ids:
    """The counts (n, k) of k pieces a row, cut so that the first ``room`` (n,) positions of each row are left."""
    return np.diff(np.minimum(np.cumsum(counts, axis=1), room[:, None]), axis=1, prepend=0)
