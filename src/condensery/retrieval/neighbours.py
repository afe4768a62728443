"""Sparse similarity matrix of queries and passages, built from lists of nearest neighbours.

The matrix has an entry for a pair if the passage is among the query's k nearest passages, or if the query is among the
passage's k nearest queries (Zhao et al. 2023, §3.2). All other pairs get a default similarity, which is stored as 0:

- For BM25 the default is 0, the score of a pair that shares no term.
- For inner products the default is their mean over all pairs, which is subtracted from the entries. The subtraction shifts
  the hardness of all batches of the same size by the same number.

Similarities below the default are set to 0, so the matrix has no negative values.

Shapes: t queries, u passages, k neighbours, d dimensions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.dense import device_of_search, search_array
from condensery.retrieval.indexes.terms import Analyser
from condensery.retrieval.ranking import Ranking
from condensery.text.languages import guess

# Anserini's, as in conf/stage/bm25.yaml
BM25: dict[str, Any] = {"k1": 0.9, "b": 0.4, "stopwords": "english", "stemmer": "porter"}

Vectors = NDArray[np.float32]


def lexical_neighbours(
    queries: Sequence[str], passages: Sequence[str], k: int, folder: Path, threads: int = 1
) -> sparse.csr_matrix:
    """Return the sparse matrix (t, u) of BM25 scores. The BM25 index of the passages is written into ``folder``.

    Raises:
        UserError: no passage has a word.
    """
    analyser = Analyser(BM25["stopwords"], BM25["stemmer"], guess(passages))
    index_texts(passages, len(passages), folder, BM25["k1"], BM25["b"], analyser, "the positives")
    return _joined(*BM25Index(folder, threads=threads).neighbours(queries, min(k, len(passages))), usual=0.0)


def dense_neighbours(
    queries: Vectors, passages: Vectors, k: int, threads: int = 1, device: str | None = None
) -> sparse.csr_matrix:
    """Return the sparse matrix (t, u) of inner products between query embeddings (t, d) and passage embeddings (u, d).

    The mean inner product over all pairs is subtracted. The search is exact and runs on ``device_of_search(device)``.
    """
    mean = queries.mean(axis=0, dtype=np.float64) @ passages.mean(axis=0, dtype=np.float64)
    device = device_of_search(device)
    of_queries = search_array(queries, passages, min(k, len(passages)), device, threads)
    of_passages = search_array(passages, queries, min(k, len(queries)), device, threads)
    return _joined(of_queries, of_passages, usual=float(mean))


def _joined(passages: Ranking, queries: Ranking, usual: float) -> sparse.csr_matrix:
    """Merge two rankings into one matrix (t, u): k passages per query (t, k), and k queries per passage (u, k).

    ``usual``: default similarity, which is subtracted.
    """
    shape = len(passages[0]), len(queries[0])
    one, other = _listed(*passages, shape[1], usual), _listed(*queries, shape[0], usual)
    return one.maximum(other.T.tocsr())  # a pair in both lists has equal similarities, up to rounding


def _listed(scores: NDArray[np.float32], rows: NDArray[np.int64], columns: int, usual: float) -> sparse.csr_matrix:
    values = np.maximum(scores - np.float32(usual), 0.0)
    kept = (rows >= 0) & (values > 0)
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sparse.csr_matrix((values[kept], rows[kept], starts), shape=(len(scores), columns))
