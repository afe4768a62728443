"""Evaluate by the development protocol of Zhao et al. (§4.1).

The protocol ranks one positive among passages drawn from a retriever's best 1,000. It is far cheaper than ranking all
passages, and its metric values are far higher. It only shows which of two models is better.

Shapes: n queries, k results, c candidates per query.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.randomness import uniforms
from condensery.retrieval.indexes.interface import CollectionRetriever, without_terms
from condensery.retrieval.ranking import Ranking, ordered
from condensery.system.progress import SILENT, ProgressTask


@dataclass(frozen=True)
class SampledCandidates:
    """A ``CollectionRetriever`` that ranks only one positive and some sampled passages for each query.

    The sample depends only on the query, its judgements and the pool, so all rankers rank the same sample.

    Attributes:
        ranker: retriever that scores the candidates.
        pool: retriever from whose results the other passages are sampled.
        positives: query row -> its relevant passages. If there are several, one is drawn, and the others are left out.
        number: number of sampled passages besides the positive; fewer if the pool returns fewer.
        depth: the passages are sampled from the ``depth`` best results of the pool.
    """

    ranker: CollectionRetriever
    pool: CollectionRetriever
    positives: Mapping[int, NDArray[np.integer]]
    number: int
    depth: int

    def __len__(self) -> int:
        return len(self.ranker)

    def without_terms(self, query_rows: NDArray[np.integer]) -> int:
        """Return the number of queries (n,) that share no term with any passage; 0 for a ranker without BM25."""
        return without_terms(self.ranker, query_rows)

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best candidates of each query, in the format of ``CollectionRetriever.search``."""
        rows = self.candidates(query_rows)
        progress.advance(len(query_rows))
        return ordered(self.ranker.score(query_rows, rows), rows, k)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the ranker's scores (n, k) of passages (n, k) for queries (n,)."""
        return self.ranker.score(query_rows, passage_rows)

    def candidates(self, query_rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the candidates (n, 1 + number): the positive, then the sampled passages in random order; -1 = none."""
        relevant = [self.positives.get(int(row), np.empty(0, np.int64)) for row in query_rows]
        candidates = np.full((len(relevant), 1 + self.number), -1, np.int64)
        draws = uniforms("candidates", "positive", index=query_rows)
        _, ranked = self.pool.search(query_rows, min(self.depth, len(self.pool)))
        for place, (row, positives, best) in enumerate(zip(query_rows.tolist(), relevant, ranked, strict=True)):
            if len(positives):
                candidates[place, 0] = positives[int(draws[place] * len(positives))]
            others = best[(best >= 0) & ~np.isin(best, positives)]
            order = np.argsort(uniforms("candidates", "others", row, index=others), kind="stable")
            chosen = others[order[: self.number]]
            candidates[place, 1 : 1 + len(chosen)] = chosen
        return candidates
