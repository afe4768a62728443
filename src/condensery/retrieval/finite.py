"""Vectors and scores that are NaN or infinite are refused where they are made, and where they are read from a file.

No ranking of them means anything, and a search drops some of them without a word.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown

DIVERGED = "its encoder diverged in training, or needs fp32"


Names = Sequence[object] | NDArray[np.integer]


def check_finite(values: NDArray[np.floating], what: str, names: Names | None = None, remedy: str = DIVERGED) -> None:
    """Raise ``UserError`` where a row of ``values`` (n, ...) holds NaN or an infinity.

    Args:
        what: begins the message, such as "round1: the vector of text"; behind it stands the row.
        names: (n,) what stands there in place of the row.
        remedy: ends the message.
    """
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):  # reads all once and keeps nothing
            return
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):  # a sum of finite numbers may be too large
        row = int(wrong[0, 0])
        name = row if names is None else names[row]
        raise UserError(f"{what} {repr(shown(name)) if isinstance(name, str) else name} is not finite; {remedy}")


def check_scores(
    scores: NDArray[np.floating], rows: NDArray[np.integer], what: str, names: Names | None = None
) -> None:
    """The same for the scores (n, k) of rankings; those of padding, where ``rows`` (n, k) is -1, say nothing."""
    remedy = "the retriever is broken; make it anew"
    check_finite(np.where(rows >= 0, scores, 0), what, names, remedy)
