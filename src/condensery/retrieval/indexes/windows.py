"""Cut texts that are longer than an encoder's input into windows. A text has the score of its best window (MaxP).

MaxP: Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural Language Modeling". The windows of a text
lie side by side, and texts keep their order, so that equal scores rank by text.

Shapes: P texts, W windows, n queries, k results.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.ranking import EMPTY, Keys, pack, top, unpack, without_repeats

Ids = NDArray[np.int64]
FILE = "windows.npy"  # file of an index that holds ``Windows.starts``
WIDER = 4  # factor by which a search looks at more windows, where those found belong to too few texts


@dataclass(frozen=True)
class Windows:
    """The places of the windows of texts.

    Attributes:
        starts: (P + 1,) the first window of each text.
        texts: (W,) the text of each window.
        skipped: (W,) number of tokens of the text before the window.
    """

    starts: Ids
    texts: Ids
    skipped: Ids


def cut(lengths: Ids, room: Ids, most: int) -> Windows:
    """Cut each text into consecutive windows.

    A window that would reach past the end of its text is moved back to end there, so it may overlap the window before.

    Args:
        lengths: (P,) tokens of each text; an empty text has one window.
        room: (P,) tokens that a window of each text holds.
        most: most windows of a text; the text behind them is left out.
    """
    counts = np.clip(-(-lengths // np.maximum(room, 1)), 1, most)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    texts = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(texts)) - starts[texts]
    skipped = np.minimum(number * room[texts], np.maximum(lengths - room, 0)[texts])
    return Windows(starts, texts, skipped)


def best_of_windows(search: Callable[[int], Keys], starts: Ids, k: int) -> Keys:
    """Return the keys of the k best texts (n, k), each with the score of its best window.

    The result is exact: the search looks at more windows until they belong to k texts.

    Args:
        search: gives the m best windows (n, m) for a number m, as keys of their rows, best first.
        starts: (P + 1,) the first window of each text.
        k: number of texts.
    """
    texts, windows = len(starts) - 1, int(starts[-1])
    looked = max(1, k)
    while True:
        looked = min(WIDER * looked, windows)
        scores, rows = unpack(search(looked))
        owners = np.searchsorted(starts, rows, side="right") - 1  # -1 for row -1
        best = without_repeats(owners)
        if looked == windows or not len(best) or (best >= 0).sum(axis=1).min() >= min(k, texts):
            return top(np.where(best >= 0, pack(scores, best), EMPTY), k)


def scores_of_best_window(
    products: Callable[[NDArray[np.integer]], NDArray[np.float32]],
    starts: Ids | None,
    texts: NDArray[np.integer],
) -> NDArray[np.float32]:
    """Return the scores (n, k) of some texts of each query, each the score of its best window; NaN for row -1.

    Args:
        products: gives the scores (n, c) of windows (n, c), -1 = none.
        starts: (P + 1,) the first window of each text; None = each text is one window.
        texts: (n, k) rows of texts, -1 = none.
    """
    if starts is None:
        return np.where(texts < 0, np.float32(np.nan), products(texts))
    first = starts[texts][..., None]  # (n, k, 1); the value for row -1 does not matter
    windows = first + np.arange(np.diff(starts).max(initial=1))  # (n, k, most of a text)
    windows[(windows >= starts[texts + 1][..., None]) | (texts[..., None] < 0)] = -1
    found = products(windows.reshape(len(windows), -1)).reshape(windows.shape)
    best = np.where(windows < 0, np.float32(-np.inf), found).max(axis=2)
    return np.where(texts < 0, np.float32(np.nan), best)
