"""The interface of every retriever of a collection, and what it reports about its searches."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.ranking import Ranking
from condensery.system.progress import ProgressTask

TOP = 10  # results that an approximate search is judged by, besides all results that were asked for
MEMORY = 2 * 2**30  # bytes that a dense search may hold at a time, besides its result
UNMATCHED = "share no term with any passage"  # words of every warning about queries that BM25 finds nothing for


class CollectionRetriever(Protocol):
    """Ranks the passages of one collection."""

    def __len__(self) -> int:
        """Return the number of passages."""

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask | None = None) -> Ranking:
        """Return the k best passages of queries of the collection.

        Args:
            query_rows: (n,) rows of queries.
            k: number of passages.
            progress: advances by queries.

        Returns:
            Scores (n, k) float32 and passage rows (n, k) int64, best first, ties by row. Where fewer than k passages are
            found, the row is -1 and the score -inf.
        """

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """The scores (n, k) that queries (n,) of the collection give passages (n, k) of each, found by ``search`` or not.

        - BM25: 0 where no term is shared.
        - Dense vectors, approximate search or not: the exact inner product, with windows that of the best window.
        - Fused rankings: the score that ``search`` gives; 0 for a passage that no member returns.

        The score is NaN for row -1, and for a passage that a reranker did not read.
        """


def recall_of(retriever: CollectionRetriever, label: str) -> dict[str, float]:
    """Print the share of exact results that an approximate retriever found so far, and return it for a manifest.

    There are two shares: among all results that were asked for, which fusion and mining use, and among the ``TOP`` best,
    which the first metrics of a table use. For an exact retriever nothing is printed, and {} is returned.
    """
    recall, top, short = (getattr(retriever, name, None) for name in ("recall", "recall_of_top", "short"))
    if recall is None:
        return {}
    of_top = "" if top is None else f", and {100 * top:.1f} % of the {TOP} best"
    print(f"[{label}] approximate search found {100 * recall:.1f} % of what exact search finds{of_top}", flush=True)
    if short:
        why = "fewer passages than it was asked for; raise nprobe (of an IVF), or ef_search (of an HNSW)"
        print(f"[{label}] for {short:,} queries approximate search found {why}", flush=True)
    return {"recall_of_exact": recall, **({} if top is None else {f"recall_of_exact@{TOP}": top})}


def without_terms(retriever: object, queries: Any) -> int:
    """Return the number of queries that share no term with any passage; 0 for a retriever that contains no BM25.

    ``queries`` are what the retriever is asked: rows of queries or texts.
    """
    count = getattr(retriever, "without_terms", None)
    return count(queries) if count else 0


def unmatched_queries(retriever: CollectionRetriever, query_rows: NDArray[np.integer]) -> dict[str, list[str]]:
    """Return the ``warnings`` of a manifest where BM25 finds nothing for most of the queries (n,); {} otherwise."""
    number = without_terms(retriever, query_rows)
    if 2 * number <= len(query_rows):
        return {}
    said = f"{number:,} of {len(query_rows):,} queries {UNMATCHED}, so BM25 finds nothing for them"
    return {"warnings": [f"{said}; are they of one language and writing? (stage.bm25.language says what a term is)"]}
