"""Define ``Fused``, which combines the scores of several searchers into one ranking, from Python."""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.ranges import Count, Weight, check_values, fault
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.indexes.interface import without_terms
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.searchers.base import Searcher, SearcherIndex, numbered


class Fused(Searcher):
    """Hybrid search: the fused ranking of several searchers, such as BM25 and a dense retriever.

    For each query, each searcher's scores are scaled to [0, 1] by their minimum and maximum (Lee 1997;
    ``condensery.retrieval.indexes.fusion``). The score of a passage is the weighted sum of its scaled scores. A searcher that
    did not find the passage adds 0. ``index`` works on copies and leaves the given searchers unchanged.

    Args:
        searchers: ``BM25``, a ``Retriever``, ... If all have indexed the same passages, ``index`` need not be called.
        weights: one number >= 0 per searcher. The ranking depends only on their ratios. None = equal weights.
        depth: number of passages retrieved from each searcher; their scores are scaled and added.

    Raises:
        UserError: a weight is missing or below 0, or all weights are 0. A search raises this error if the searchers have not
            indexed the same passages and ``index`` was not called afterwards.
    """

    def __init__(
        self, searchers: Sequence[Searcher], weights: Sequence[float] | None = None, depth: Count = 1000
    ) -> None:
        check_values(Fused, locals())
        super().__init__()
        listed = list(searchers) if isinstance(searchers, Iterable) else []
        self.searchers = [copy(one) for one in listed if isinstance(one, Searcher)]
        if not listed or len(self.searchers) < len(listed):
            raise UserError("Fused: a list of searchers is expected, such as [BM25(), Retriever(...)]")
        given = [1.0] * len(listed) if weights is None else list(weights) if isinstance(weights, Iterable) else []
        if len(given) != len(listed) or any(fault(Weight, one) for one in given) or not any(given):
            raise UserError(f"Fused: weights must be a number >= 0 for each of {len(listed)} searchers, not all 0")
        self.weights, self.depth = list(map(float, given)), depth
        first = self.searchers[0]
        if len({one.content_hash for one in self.searchers}) == 1:
            self._ids, self._titles, self._texts = first._ids, first._titles, first._texts

    def identity(self) -> str:
        """Return a string with the depth, and the weight and identity of each searcher. The results depend only on these."""
        return f"fused {self.depth} {list(zip(self.weights, (one.identity() for one in self.searchers), strict=True))}"

    def without_terms(self, queries: Sequence[str]) -> int:
        """Return the number of queries that share no term with any passage: the maximum over the searchers."""
        return max(without_terms(one, queries) for one in self.searchers)

    def _check(self, queries: Sequence[str]) -> list[str]:
        if not self._ids:
            raise UserError("search: Fused's searchers have not indexed the same passages; call index(passages) first")
        return super()._check(queries)

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        passages = numbered(titles, texts)
        self.searchers = [copy(one).index(passages) for one in self.searchers]

    def _rank(self, queries: list[str], k: int) -> Ranking:
        return self._joined(queries).search(np.arange(len(queries)), k)

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._joined(queries).score(np.arange(len(queries)), passage_rows)

    def _joined(self, queries: list[str]) -> FusedIndex:
        return FusedIndex([SearcherIndex(one, queries) for one in self.searchers], self.weights, self.depth)
