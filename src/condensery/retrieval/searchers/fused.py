"""``Fused``: several searchers of a program of your own, joined into one."""

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.ranges import Count, Weight, check_numbers, fault
from condensery.retrieval.indexes.fused import FusedIndex
from condensery.retrieval.indexes.interface import without_terms
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.searchers.base import Searcher, SearcherIndex, numbered


class Fused(Searcher):
    """Several searchers, such as BM25 and a retriever, that are searched as one. ``index`` does not change the originals.

    The score of a passage is the weighted sum of its scores from the searchers. Each searcher's scores are first brought to
    [0, 1] for each query (Lee 1997; ``condensery.retrieval.indexes.fused``). A searcher that did not find the passage adds
    nothing.

    Args:
        searchers: ``BM25``, a ``Retriever``, ... Where all have indexed the same passages, nothing need be indexed again.
        weights: a number >= 0 for each searcher; their scale does not change the order. None = equal weights.
        depth: passages that each searcher is asked for, and whose scores are brought to [0, 1] and joined.

    Raises:
        UserError: a weight is missing or below 0, or all are 0; from a search, the searchers have not indexed the same
            passages and nothing was indexed since.
    """

    def __init__(
        self, searchers: Sequence[Searcher], weights: Sequence[float] | None = None, depth: Count = 1000
    ) -> None:
        check_numbers(Fused, locals())
        super().__init__()
        self.searchers = [copy(one) for one in searchers if isinstance(one, Searcher)]
        if not searchers or len(self.searchers) < len(searchers):
            raise UserError("Fused: a list of searchers is expected, such as [BM25(), Retriever(...)]")
        given = [1.0] * len(searchers) if weights is None else list(weights)
        if len(given) != len(searchers) or any(fault(Weight, one) for one in given) or not any(given):
            raise UserError(
                f"Fused: weights must be a number >= 0 for each of the {len(searchers)} searchers, and not all 0"
            )
        self.weights, self.depth = list(map(float, given)), depth
        first = self.searchers[0]
        if len({one.content_hash for one in self.searchers}) == 1:
            self._ids, self._titles, self._texts = first._ids, first._titles, first._texts

    def identity(self) -> str:
        """Return the depth, and the weight and identity of each searcher: all that the results depend on."""
        return f"fused {self.depth} {list(zip(self.weights, (one.identity() for one in self.searchers), strict=True))}"

    def without_terms(self, queries: Sequence[str]) -> int:
        """Return the number of queries that share no term with any passage; the largest number that a searcher counts."""
        return max(without_terms(one, queries) for one in self.searchers)

    def _check(self, queries: Sequence[str]) -> None:
        if not self._ids:
            raise UserError(
                "search: the searchers of Fused have not indexed the same passages; call index(passages) first"
            )
        super()._check(queries)

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        passages = numbered(titles, texts)
        self.searchers = [copy(one).index(passages) for one in self.searchers]

    def _rank(self, queries: list[str], k: int) -> Ranking:
        return self._joined(queries).search(np.arange(len(queries)), k)

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._joined(queries).score(np.arange(len(queries)), passage_rows)

    def _joined(self, queries: list[str]) -> FusedIndex:
        return FusedIndex([SearcherIndex(one, queries) for one in self.searchers], self.weights, self.depth)
