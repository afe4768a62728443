"""Many stretches of one long array at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


def ranges(starts: ArrayLike, counts: ArrayLike) -> Ids:
    """The positions start, start + 1, ..., start + count - 1 of every pair, one behind the other: (sum(counts),)."""
    first, number = np.asarray(starts, dtype=np.int64), np.asarray(counts, dtype=np.int64)
    before = np.cumsum(number) - number
    return np.repeat(first - before, number) + np.arange(number.sum(), dtype=np.int64)
