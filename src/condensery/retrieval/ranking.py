"""Sort rankings in one fixed order: by score, descending, and for equal scores by row number of the passage, ascending.

Score and row number are packed into one 64-bit key, with the score in the upper half. A ranking consists of the k largest
keys. Because all keys are distinct, every selection algorithm gives the same ranking.

Shapes: n queries, m candidates, k results.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

EMPTY = np.iinfo(np.int64).min  # key of padding, below the key of every passage
LOWEST = np.array(np.finfo(np.float32).min)  # the lowest finite score
LAST_ROW = 2**31 - 1
SIGN_FLIP = 0x7FFFFFFF
FEW = 8  # for up to FEW * k candidates, sorting all is faster than selecting the k largest

Keys = NDArray[np.int64]
Ranking = tuple[NDArray[np.float32], NDArray[np.int64]]
Row = TypeVar("Row", bound=np.integer)


def pack(scores: NDArray[np.float32], rows: NDArray[np.integer]) -> Keys:
    """Pack each score and row number into one sortable key. The shapes broadcast.

    Row numbers must be below 2**31, and scores must not be NaN.
    """
    return (_ordered(scores) << 32) + (LAST_ROW - rows.astype(np.int64))


def _ordered(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Map scores to integers in the same order. Adjacent float32 values map to adjacent integers, but -1 is never used."""
    positive_zero = scores.astype(np.float32, copy=False) + np.float32(0)  # -0.0 and 0.0 must tie
    bits = positive_zero.view(np.int32)
    # The bits of a float32 sort like an integer once the magnitude bits of negative numbers are flipped.
    return np.where(bits < 0, bits ^ SIGN_FLIP, bits).astype(np.int64)


def _scores(ordered: NDArray[np.int64]) -> NDArray[np.float32]:
    bits = ordered.astype(np.int32)
    return np.where(bits < 0, bits ^ SIGN_FLIP, bits).astype(np.int32).view(np.float32)


def unpack(keys: Keys) -> Ranking:
    """Return the scores (float32) and rows (int64) of keys; ``EMPTY`` gives -inf and -1."""
    rows = LAST_ROW - (keys & 0xFFFFFFFF)
    empty = keys == EMPTY
    return np.where(empty, np.float32(-np.inf), _scores(keys >> 32)), np.where(empty, -1, rows)


def top(keys: Keys, k: int) -> Keys:
    """Return the k largest keys along the last axis, largest first; (..., m) -> (..., k), padded with ``EMPTY``."""
    if keys.shape[-1] > FEW * k:
        keys = np.partition(keys, keys.shape[-1] - k, axis=-1)[..., -k:]
    keys = np.sort(keys, axis=-1)[..., ::-1][..., :k]
    missing = k - keys.shape[-1]
    return np.pad(keys, [(0, 0)] * (keys.ndim - 1) + [(0, missing)], constant_values=EMPTY) if missing else keys


def ordered(scores: NDArray[np.float32], rows: NDArray[np.integer], k: int) -> Ranking:
    """Return the k best of each query's candidates by their scores: scores (n, k) and rows (n, k), best first.

    Args:
        scores: float32 (n, m), scores of the candidates.
        rows: int (n, m), row numbers of the candidates; -1 is padding.
        k: number of results per query. Missing results are padded with score -inf and row -1.
    """
    return unpack(top(np.where(rows >= 0, pack(scores, rows), EMPTY), k))


def strictly_falling(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Make scores (..., k), sorted best first, strictly decreasing, so that sorting by score alone keeps the order.

    Each score becomes the minimum of itself and the next float32 below its predecessor, so a score without ties does not
    change. There is no number below the lowest float32, so near this number the preceding scores are raised. Padding at the
    end (-inf) also becomes finite.
    """
    places = np.arange(scores.shape[-1])
    ordered = _ordered(scores)
    ordered += ordered < 0  # closes the gap at -1, so that subtracting 1 gives the next float32 below
    falling = np.minimum.accumulate(ordered + places, axis=-1) - places
    falling = np.maximum(falling, _ordered(np.asarray(LOWEST)) + 1 + places[::-1])
    return np.where(falling == ordered, scores, _scores(falling - (falling < 0)))


def scores_in(ranking: Ranking, passages: NDArray[np.integer], otherwise: float) -> NDArray[np.float32]:
    """Look up the scores of passages (n, k) in a ranking (n, c), whose results may be in any order.

    Returns:
        The scores, float32 (n, k): ``otherwise`` for a passage that is not in the ranking of its query, NaN for padding (-1).
    """
    scores, rows = ranking
    query, place = np.nonzero(rows >= 0)
    known, values = (query << 32) + rows[query, place], scores[query, place]
    order = np.argsort(known, kind="stable")
    wanted = (np.arange(len(passages), dtype=np.int64)[:, None] << 32) + passages
    found = np.full(passages.shape, otherwise, np.float32)
    if len(known):
        at = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
        found = np.where(known[at] == wanted, values[at], np.float32(otherwise))
    return np.where(passages < 0, np.float32(np.nan), found)


def without_repeats(rows: NDArray[Row]) -> NDArray[Row]:
    """Replace repeats of a passage within a row of ``rows`` (n, m) by -1. The first occurrence stays."""
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    repeated = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    return np.where(repeated, rows.dtype.type(-1), rows)
