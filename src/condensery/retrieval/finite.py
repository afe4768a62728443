"""Reject vectors and scores that are NaN or infinite, both when they are computed and when they are read from a file.

A ranking by such values is meaningless, and a search drops some of them silently.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown

DIVERGED = "its encoder diverged in training (lower learning_rate), or needs precision fp32"


Names = Sequence[object] | NDArray[np.integer]


def check_finite(values: NDArray[np.floating], what: str, names: Names | None = None, remedy: str = DIVERGED) -> None:
    """Raise ``UserError`` if ``values`` contains NaN or an infinity. The message names the first row with such a value.

    Args:
        values: float array (n, ...), with one row per text or query.
        what: beginning of the message, such as "round1: the vector of text". The row number follows it.
        names: (n,), names of the rows, which the message gives instead of the row number.
        remedy: end of the message.
    """
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):  # one pass over the values, without a copy
            return
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):  # empty if all values are finite and only their sum overflowed
        row = int(wrong[0, 0])
        name = row if names is None else names[row]
        raise UserError(f"{what} {repr(shown(name)) if isinstance(name, str) else name} is not finite; {remedy}")


def check_scores(
    scores: NDArray[np.floating], rows: NDArray[np.integer], what: str, names: Names | None = None
) -> None:
    """Raise ``UserError`` if a ranking has a score (n, k) that is not finite. Padding (row -1) is not checked."""
    check_finite(np.where(rows >= 0, scores, 0), what, names, "the retriever is damaged; train it or load it again")
