"""The pool from which training draws hard negatives: several sources of negatives, each memory-mapped."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import Negatives
from condensery.retrieval.ranking import without_repeats


class NegativePool:
    """Looks up the negatives of training queries in several sources, batch by batch.

    ``pool[chosen]`` (b, m) holds the negatives of the queries ``chosen`` (b,), which are indices into ``query_rows``. Each
    passage occurs once per query. The value -1 is padding, at any position.

    Args:
        sources: negatives of each source, with queries in any order. Queries that are not training queries are ignored.
        query_rows: int64 (q,), row numbers of the training queries in the collection, ascending.
        depths: for each source, the number of negatives used per query, best first; None = all.
    """

    def __init__(
        self, sources: Sequence[Negatives], query_rows: NDArray[np.int64], depths: Sequence[int | None] | None = None
    ) -> None:
        self.sources = sources
        self.places = [places_of(source.query_rows, query_rows) for source in sources]
        self.depths = list(depths or [None] * len(sources))
        widths = [len(range(one.passage_rows.shape[1])[:end]) for one, end in zip(sources, self.depths, strict=True)]
        self.shape = (len(query_rows), sum(widths))

    def __getitem__(self, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        parts = self.parts(chosen)
        return without_repeats(np.concatenate(parts, axis=1)) if parts else np.empty((len(chosen), 0), np.int32)

    def content(self) -> dict[str, Any]:
        """Return the arrays that determine the negatives. Scores are left out, because they differ between machines."""
        return {
            "passages": [source.passage_rows for source in self.sources],
            "places": self.places,
            "depths": self.depths,
        }

    def parts(self, chosen: NDArray[np.integer]) -> list[NDArray[np.int32]]:
        """Return one array (b, depth) per source: the negatives of the queries ``chosen`` (b,), padded with -1.

        A passage may occur in several sources.
        """
        parts = []
        for source, places, depth in zip(self.sources, self.places, self.depths, strict=True):
            at = places[chosen]
            parts.append(np.where(at[:, None] >= 0, source.passage_rows[np.maximum(at, 0), :depth], np.int32(-1)))
        return parts


class NegativeWeights:
    """Sampling weights of the negatives in a pool: ``weights[chosen]`` (b, m), positive and aligned with ``pool[chosen]``.

    For each query, the weight of a source is divided equally among the negatives from this source. A passage from several
    sources gets the sum of its shares.

    Args:
        pool: the pool of negatives.
        weights: weight of each source.
    """

    def __init__(self, pool: NegativePool, weights: Sequence[float]) -> None:
        self.pool, self.weights = pool, weights

    def __getitem__(self, chosen: NDArray[np.integer]) -> NDArray[np.float64]:
        parts = self.pool.parts(chosen)
        shares = [
            np.broadcast_to(weight / np.maximum((part >= 0).sum(axis=1, keepdims=True), 1), part.shape)
            for part, weight in zip(parts, self.weights, strict=True)
        ]
        total = np.concatenate(shares, axis=1)
        for own, passages in zip(total, np.concatenate(parts, axis=1), strict=True):
            _, place = np.unique(passages, return_inverse=True)
            own[:] = np.bincount(place, own)[place]  # every occurrence of a passage gets the sum
        return total


def places_of(here: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index in ``here`` of each value of ``wanted``; -1 for a value that ``here`` does not contain."""
    order = np.argsort(here, kind="stable")
    at = np.minimum(np.searchsorted(here, wanted, sorter=order), len(here) - 1)
    return np.where(here[order[at]] == wanted, order[at], -1)
