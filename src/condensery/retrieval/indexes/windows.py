"""Split texts that are longer than an encoder's input into windows. A text is ranked by its best window (MaxP).

MaxP: Dai and Callan 2019, "Deeper Text Understanding for IR with Contextual Neural Language Modeling". The windows of a text
have consecutive rows, and the rows follow the order of the texts. Ties between windows are therefore broken by text.

Shapes: P texts, W windows, n queries, k results.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.ranking import EMPTY, Keys, pack, top, unpack, without_repeats

Ids = NDArray[np.int64]
FILE = "windows.npy"  # file with ``Windows.starts`` in the folder of an index
WIDER = 4  # factor by which a search deepens if its windows belong to too few texts


@dataclass(frozen=True)
class Windows:
    """The positions of windows in texts.

    Attributes:
        starts: int64 (P + 1,), row of the first window of each text.
        texts: int64 (W,), row of the text of each window.
        skipped: int64 (W,), number of tokens of the text before the window.
    """

    starts: Ids
    texts: Ids
    skipped: Ids


def cut(lengths: Ids, room: Ids, most: int) -> Windows:
    """Split each text into consecutive windows.

    A window that would exceed its text is shifted back to end with the text, so it may overlap the previous window.

    Args:
        lengths: int64 (P,), number of tokens of each text. An empty text has one window.
        room: int64 (P,), number of tokens per window, for each text.
        most: maximum number of windows per text; the remaining tokens are left out.
    """
    counts = np.clip(-(-lengths // np.maximum(room, 1)), 1, most)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    texts = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(texts)) - starts[texts]
    skipped = np.minimum(number * room[texts], np.maximum(lengths - room, 0)[texts])
    return Windows(starts, texts, skipped)


def best_of_windows(search: Callable[[int], Keys], starts: Ids, k: int) -> Keys:
    """Return the keys (n, k) of the k best texts of each query. The score of a text is the score of its best window.

    The result is exact, because the search goes deeper until the windows that it finds belong to at least k texts.

    Args:
        search: returns the m best windows for a number m, as keys (n, m) of their rows, best first.
        starts: int64 (P + 1,), row of the first window of each text.
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
    products: Callable[[NDArray[np.integer]], NDArray[np.float32]], starts: Ids | None, texts: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the scores (n, k) of texts (n, k): the score of each text's best window, NaN for padding (row -1).

    Args:
        products: returns the scores (n, c) of windows (n, c), -1 = none.
        starts: int64 (P + 1,), row of the first window of each text; None = each text is one window.
        texts: int (n, k), rows of texts, -1 = none.
    """
    if starts is None:
        return np.where(texts < 0, np.float32(np.nan), products(texts))
    first = starts[texts][..., None]  # (n, k, 1); the value for row -1 is masked below
    windows = first + np.arange(np.diff(starts).max(initial=1))  # (n, k, maximum number of windows per text)
    windows[(windows >= starts[texts + 1][..., None]) | (texts[..., None] < 0)] = -1
    found = products(windows.reshape(len(windows), -1)).reshape(windows.shape)
    best = np.where(windows < 0, np.float32(-np.inf), found).max(axis=2)
    return np.where(texts < 0, np.float32(np.nan), best)
