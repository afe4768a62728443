"""Sparse similarities of queries and passages, from lists of nearest neighbours.

A pair is listed where the passage is among the k best of the query or the query among the k best of the passage (Zhao
2022, §3.2). Every other pair counts as having the usual similarity, which is written as 0. For BM25 this is 0, the score
where no term is shared. For inner products it is their mean over all pairs, which is subtracted; this makes all batches of
one size harder by the same number. A similarity below the usual one is 0 as well, so no value is negative.

Shapes: t queries, u passages, k neighbours, d dimensions.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.dense import device_of_search, search_array
from condensery.retrieval.ranking import Ranking
from condensery.text.languages import guess

BM25 = {"k1": 0.9, "b": 0.4, "stopwords": "english", "stemmer": "porter"}  # Anserini's, as in conf/stage/bm25.yaml

Vectors = NDArray[np.float32]


def lexical_neighbours(
    queries: Sequence[str], passages: Sequence[str], k: int, folder: Path, threads: int = 1
) -> sparse.csr_matrix:
    """Return the BM25 scores of queries and passages, (t, u). ``folder`` gets the index.

    Raises:
        UserError: no passage has a word.
    """
    index_texts(passages, len(passages), folder, **BM25, what="the positives", language=guess(passages))  # type: ignore[arg-type]
    rankings = BM25Index(folder, threads=threads).neighbours(queries, min(k, len(passages)))
    return _joined(*rankings, usual=0.0)


def dense_neighbours(
    queries: Vectors, passages: Vectors, k: int, threads: int = 1, device: str | None = None
) -> sparse.csr_matrix:
    """Return the inner products of query vectors (t, d) and passage vectors (u, d), less their mean over all pairs: (t, u).

    The search is exact and runs on ``device_of_search(device)``.
    """
    mean = queries.mean(axis=0, dtype=np.float64) @ passages.mean(axis=0, dtype=np.float64)
    device = device_of_search(device)
    of_queries = search_array(queries, passages, min(k, len(passages)), device, threads)
    of_passages = search_array(passages, queries, min(k, len(queries)), device, threads)
    return _joined(of_queries, of_passages, usual=float(mean))


def _joined(passages: Ranking, queries: Ranking, usual: float) -> sparse.csr_matrix:
    """Return the neighbours of the queries (t, k) and those of the passages (u, k) as one matrix (t, u), less ``usual``."""
    shape = len(passages[0]), len(queries[0])
    one, other = _listed(*passages, shape[1], usual), _listed(*queries, shape[0], usual)
    return one.maximum(other.T.tocsr())  # a pair in both lists has one similarity, up to rounding


def _listed(scores: NDArray[np.float32], rows: NDArray[np.int64], columns: int, usual: float) -> sparse.csr_matrix:
    values = np.maximum(scores - np.float32(usual), 0.0)
    kept = (rows >= 0) & (values > 0)
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sparse.csr_matrix((values[kept], rows[kept], starts), shape=(len(scores), columns))
