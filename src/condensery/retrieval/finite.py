"""Reject vectors and scores that are NaN or infinite, both when they are computed and when they are read from a file.

A ranking by such values is meaningless, and a search drops some of them silently.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown

DIVERGED = "its encoder diverged in training, or needs fp32"


Names = Sequence[object] | NDArray[np.integer]


def check_finite(values: NDArray[np.floating], what: str, names: Names | None = None, remedy: str = DIVERGED) -> None:
    """Raise ``UserError`` if a row of ``values`` (n, ...) contains NaN or an infinity.

    Args:
        values: (n, ...).
        what: beginning of the message, such as "round1: the vector of text"; the row number follows.
        names: (n,), names of the rows, which replace the row number in the message.
        remedy: end of the message.
    """
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):  # one pass over the values, without a copy
            return
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):  # none where only the sum overflowed
        row = int(wrong[0, 0])
        name = row if names is None else names[row]
        raise UserError(f"{what} {repr(shown(name)) if isinstance(name, str) else name} is not finite; {remedy}")


def check_scores(
    scores: NDArray[np.floating], rows: NDArray[np.integer], what: str, names: Names | None = None
) -> None:
    """Raise ``UserError`` if a score (n, k) of a ranking is not finite. Scores of padding, row -1, are not checked."""
    remedy = "the retriever is broken; make it anew"
    check_finite(np.where(rows >= 0, scores, 0), what, names, remedy)
