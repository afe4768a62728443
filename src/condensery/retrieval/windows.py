"""Texts that are longer than what an encoder reads, in several windows: a text is as good as its best window (MaxP: Dai and
Callan 2019, "Deeper Text Understanding for IR with Contextual Neural Language Modeling").

The windows of a text lie side by side, and those of all texts in the order of the texts, so that equal scores rank by text.

Shapes: P texts, W windows, n queries, k results.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.ranking import EMPTY, Keys, pack, top, unpack

Ids = NDArray[np.int64]
FILE = "windows.npy"  # of an index: ``Windows.starts``
WIDER = 4  # times the windows that are looked at, where those of so few texts were found


@dataclass(frozen=True)
class Windows:
    """Where windows begin.

    Attributes:
        starts: (P + 1,) the first window of each text.
        texts: (W,) the text of each window.
        skipped: (W,) tokens of the text before the window.
    """

    starts: Ids
    texts: Ids
    skipped: Ids


def cut(lengths: Ids, room: Ids, most: int) -> Windows:
    """One window behind the other, at most ``most`` of a text; its last one ends where the text ends, and may overlap.

    Args:
        lengths: (P,) tokens of each text; an empty one has one window.
        room: (P,) tokens that a window of it holds.
    """
    counts = np.clip(-(-lengths // np.maximum(room, 1)), 1, most)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    texts = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(texts)) - starts[texts]
    skipped = np.minimum(number * room[texts], np.maximum(lengths - room, 0)[texts])
    return Windows(starts, texts, skipped)


def best_of_windows(search: Callable[[int], Keys], starts: Ids, k: int) -> Keys:
    """The k best texts (n, k), each by its best window; exact, for it looks at more windows until there are k texts.

    Args:
        search: number m -> the m best windows (n, m) as keys of their rows, best first.
        starts: (P + 1,) the first window of each text.
    """
    texts, windows = len(starts) - 1, int(starts[-1])
    looked = max(1, k)
    while True:
        looked = min(WIDER * looked, windows)
        scores, rows = unpack(search(looked))
        owners = np.searchsorted(starts, rows, side="right") - 1  # -1 of row -1
        order = np.argsort(owners, axis=1, kind="stable")
        sorted_owners = np.take_along_axis(owners, order, axis=1)
        again = np.zeros(owners.shape, bool)
        np.put_along_axis(again, order[:, 1:], sorted_owners[:, 1:] == sorted_owners[:, :-1], axis=1)
        kept = ~again & (rows >= 0)
        if looked == windows or not len(kept) or kept.sum(axis=1).min() >= min(k, texts):
            return top(np.where(kept, pack(np.where(kept, scores, 0), owners), EMPTY), k)


def scores_of_best_window(
    products: Callable[[NDArray[np.integer]], NDArray[np.float32]],
    starts: Ids | None,
    texts: NDArray[np.integer],
) -> NDArray[np.float32]:
    """The scores of some texts (n, k) of each query, each its best window's; NaN for row -1.

    Args:
        products: rows (n, c) of windows, -1 = none -> their scores.
        starts: (P + 1,) the first window of each text; None = each text is one.
        texts: (n, k) rows of texts, -1 = none.
    """
    if starts is None:
        return np.where(texts < 0, np.float32(np.nan), products(texts))
    first = starts[texts][..., None]  # (n, k, 1); of row -1 it does not matter
    windows = first + np.arange(np.diff(starts).max(initial=1))  # (n, k, most of a text)
    windows[(windows >= starts[texts + 1][..., None]) | (texts[..., None] < 0)] = -1
    found = products(windows.reshape(len(windows), -1)).reshape(windows.shape)
    best = np.where(windows < 0, np.float32(-np.inf), found).max(axis=2)
    return np.where(texts < 0, np.float32(np.nan), best)
