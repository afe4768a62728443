"""Define the interface of a collection's retrievers, and report statistics of their searches."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.errors import number_of
from condensery.retrieval.ranking import Ranking
from condensery.system.progress import SILENT, ProgressTask

TOP = 10  # depth at which the recall of an approximate search is reported, in addition to the depth of the search
MEMORY = 2 * 2**30  # maximum memory of a dense search in bytes, besides its result
UNMATCHED = "share no term with any passage"  # part of every warning about queries for which BM25 finds nothing


class CollectionRetriever(Protocol):
    """Interface of a retriever, which ranks the passages of one collection for the queries of this collection."""

    def __len__(self) -> int:
        """Return the number of passages."""

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection.

        Args:
            query_rows: int (n,), row numbers of the queries.
            k: number of passages per query.
            progress: progress bar, which advances by queries.

        Returns:
            Scores, float32 (n, k), and row numbers of passages, int64 (n, k), best first, ties by row number. If fewer than
            k passages are found, the remaining rows are -1 and the remaining scores -inf.
        """

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) for queries (n,), whether or not ``search`` would return them.

        - BM25: 0 if no term is shared.
        - Dense vectors, with exact or approximate search: the exact inner product. With windows, it is the inner
          product of the best window.
        - Fused rankings: the score of ``search``; 0 for a passage that no member returns.

        The score is NaN for padding (row -1), and for a passage that was not reranked.
        """


def recall_of(retriever: CollectionRetriever, label: str) -> dict[str, float]:
    """Print the recall of an approximate retriever relative to exact search, and return it for a manifest.

    The recall covers all searches so far. It is measured at two depths: at the depth of the search, which matters for fusion
    and mining, and at ``TOP``, which matters for the first metrics of a table. For an exact retriever, nothing is printed and
    {} is returned.
    """
    recall, top, short = (getattr(retriever, name, None) for name in ("recall", "recall_of_top", "short"))
    if recall is None:
        return {}
    of_top = "" if top is None else f", and {100 * top:.1f} % of the {TOP} best"
    print(f"[{label}] approximate search found {100 * recall:.1f} % of what exact search finds{of_top}", flush=True)
    if short:
        why = f"for {number_of(short, 'queries')} approximate search found fewer passages than it was asked for"
        keys = "stage.ann_index.nprobe (of an IVF), or stage.ann_index.ef_search (of an HNSW)"
        print(f"[{label}] {why}; raise {keys}", flush=True)
    return {"recall_of_exact": recall, **({} if top is None else {f"recall_of_exact@{TOP}": top})}


def without_terms(retriever: object, queries: Any) -> int:
    """Count the queries that share no term with any passage. The count is 0 for a retriever without BM25.

    ``queries``: row numbers or strings, whichever the retriever takes.
    """
    count = getattr(retriever, "without_terms", None)
    return count(queries) if count else 0


def unmatched_queries(retriever: CollectionRetriever, query_rows: NDArray[np.integer]) -> dict[str, list[str]]:
    """Return the ``warnings`` of a manifest if BM25 finds nothing for most of the queries (n,); otherwise {}."""
    number = without_terms(retriever, query_rows)
    if 2 * number <= len(query_rows):
        return {}
    message = f"{number_of(number, f'of {len(query_rows):,} queries {UNMATCHED}')}, so BM25 finds nothing for them"
    return {"warnings": [f"{message}; use queries in the passages' language and script, or set stage.bm25.language"]}
