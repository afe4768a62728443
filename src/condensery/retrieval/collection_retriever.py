"""What every retriever of a collection can do."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.ranking import Ranking
from condensery.system.progress import ProgressTask

TOP = 10  # passages that an approximate search is judged by, besides all that were asked for
MEMORY = 2 * 2**30  # bytes that a dense search may hold at a time beside its result
UNMATCHED = "share no term with any passage"  # what every warning says of queries that BM25 finds nothing for


class CollectionRetriever(Protocol):
    """Ranks the passages of one collection."""

    def __len__(self) -> int:
        """The number of passages."""

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask | None = None) -> Ranking:
        """The k best passages of queries of the collection.

        Returns scores (n, k) float32 and passage rows (n, k) int64, best first, ties by row; where fewer than k are
        found the row is -1 and the score -inf.
        """

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """The scores that queries (n,) of the collection give passages (n, k) of each, found by ``search`` or not.

        Of BM25, 0 where no term is shared; of dense vectors, approximate search or not, the exact inner product, the best
        window's; of a fused ranking, what its ``search`` gives, and 0 for what none of its members returns. NaN for row -1,
        and for a passage that a reranker did not read.
        """


def recall_of(retriever: CollectionRetriever, label: str) -> dict[str, float]:
    """What an approximate retriever found of the exact results so far: printed, and for a manifest; of another nothing.

    Of all that were asked for, which fusion and mining look at, and of the ``TOP`` best, which a table's first metrics do.
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


def unmatched_queries(retriever: CollectionRetriever, query_rows: NDArray[np.integer]) -> dict[str, list[str]]:
    """``warnings`` for a manifest where BM25 finds nothing for most of some queries (n,); {} otherwise.

    A retriever that has BM25 in it says how many those are (``without_terms``).
    """
    count = getattr(retriever, "without_terms", None)
    number = count(query_rows) if count else 0
    if 2 * number <= len(query_rows):
        return {}
    said = f"{number:,} of {len(query_rows):,} queries {UNMATCHED}, so BM25 finds nothing for them"
    return {"warnings": [f"{said}; are they of one language and writing? (stage.bm25.language says what a term is)"]}
