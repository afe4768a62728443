"""What hard negatives are drawn from: several sources side by side, each mapped from disk."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import Negatives


class NegativePool:
    """The negatives of the training queries from several sources, side by side, read as a batch asks for them.

    ``pool[chosen]`` (b, m): the negatives of the queries ``chosen`` (b,), each passage once, padded with -1 anywhere.

    Args:
        sources: their queries in any order; those that no training query is are left alone.
        query_rows: (q,) rows of the training queries in the collection, ascending.
    """

    def __init__(self, sources: Sequence[Negatives], query_rows: NDArray[np.int64]) -> None:
        self.sources = sources
        self.places = [_places(source.query_rows, query_rows) for source in sources]
        self.shape = (len(query_rows), sum(source.passage_rows.shape[1] for source in sources))

    def __getitem__(self, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        if not self.sources:
            return np.empty((len(chosen), 0), np.int32)
        parts = []
        for source, places in zip(self.sources, self.places, strict=True):
            at = places[chosen][:, None]
            parts.append(np.where(at >= 0, source.passage_rows[np.maximum(at[:, 0], 0)], np.int32(-1)))
        return without_repeats(np.concatenate(parts, axis=1))


def _places(here: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of ``wanted`` stands in ``here``, -1 where it does not."""
    order = np.argsort(here, kind="stable")
    at = np.minimum(np.searchsorted(here, wanted, sorter=order), len(here) - 1)
    return np.where(here[order[at]] == wanted, order[at], -1)


def without_repeats(pool: NDArray[np.int32]) -> NDArray[np.int32]:
    """(q, m) with each passage at most once a row: a later occurrence becomes -1."""
    order = np.argsort(pool, axis=1, kind="stable")
    ascending = np.take_along_axis(pool, order, axis=1)
    repeated = np.zeros(pool.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    return np.where(repeated, np.int32(-1), pool)
