"""Count the co-occurrences of tokens, and compute token vectors from the counts without training.

Shapes: V tokens in the vocabulary, d dimensions.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds  # loads SciPy's BLAS; ``threadpool_limits`` limits only libraries that are loaded
from threadpoolctl import threadpool_limits

from condensery.randomness import generator
from condensery.system.progress import SILENT, ProgressTask
from condensery.tokens.store import TokenStore

BLOCK = 1 << 22  # number of tokens, or of token pairs, that are counted at a time


def unigrams(store: TokenStore, size: int) -> NDArray[np.int64]:
    """Count how often each of ``size`` ids occurs in the texts of ``store``: int64 (V,)."""
    counts = np.zeros(size, np.int64)
    for first in range(0, store.token_count, BLOCK):
        counts += np.bincount(store.tokens[first : first + BLOCK], minlength=size)
    return counts


def cooccurrences(store: TokenStore, size: int, window: int, progress: ProgressTask = SILENT) -> sparse.csr_array:
    """Count how often two tokens occur within ``window`` tokens of each other in one document.

    A pair at distance s counts 1 / s. The texts of a document count as one text. The unit of the result is
    1 / lcm(1, ..., window), so only whole numbers are added. A count below 2⁵³ units is therefore exact and does not
    depend on the order of the additions. For window 10, a pair reaches this limit when its tokens are adjacent 3.6e12
    times. Memory holds the pairs of one block, and the counts of the distinct pairs, at most V².

    Args:
        store: token store of the documents.
        size: vocabulary size V, larger than any id.
        window: from 1 to 40; with a larger window, a single adjacent pair would exceed 2⁵³ units.
        progress: progress task that advances by the number of tokens counted.

    Returns:
        (V, V) float64, symmetric.
    """
    unit = math.lcm(*range(1, window + 1))
    step = max(1, BLOCK // window)
    total = sparse.csr_array((size, size), dtype=np.float64)  # the row is the smaller id of a pair
    for first in range(0, store.token_count, step):
        stop = min(first + step, store.token_count)
        ids = np.asarray(store.tokens[first : stop + window]).astype(np.int32)
        document = np.searchsorted(store.document_starts, np.arange(first, first + len(ids)), side="right")
        left, right, weights = [], [], []
        for distance in range(1, window + 1):
            places = np.arange(min(stop - first, len(ids) - distance))
            places = places[document[places] == document[places + distance]]
            a, b = ids[places], ids[places + distance]
            left.append(np.minimum(a, b))
            right.append(np.maximum(a, b))
            weights.append(np.full(len(places), unit // distance, np.float64))
        pairs = np.concatenate(left), np.concatenate(right)
        total += sparse.coo_array((np.concatenate(weights), pairs), shape=(size, size)).tocsr()
        progress.advance(stop - first)
    return (total + total.T).tocsr()


def positive_pmi(counts: sparse.csr_array, smoothing: float = 0.75) -> sparse.csr_array:
    """Compute the positive pointwise mutual information of counted pairs, max(0, log p(a, b) / (p(a) p(b))): (V, V).

    The probability of a context b is proportional to its count to the power ``smoothing`` (Levy, Goldberg and Dagan 2015,
    eq. 3). Levy and Goldberg 2014 show that skip-gram with negative sampling factorises this matrix. The unit of the
    counts does not change the result.
    """
    if not counts.nnz:
        return counts
    pairs = counts.tocoo()
    tokens = np.asarray(counts.sum(axis=1), np.float64).ravel()
    contexts = np.asarray(counts.sum(axis=0), np.float64).ravel() ** smoothing
    expected = tokens[pairs.row] * (contexts / contexts.sum())[pairs.col]
    information = np.log(pairs.data / expected)
    kept = information > 0
    return sparse.coo_array((information[kept], (pairs.row[kept], pairs.col[kept])), shape=counts.shape).tocsr()


def truncated_svd(matrix: sparse.csr_array, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the left singular vectors (V, dim) and the singular values (dim,), largest first; zeros beyond the rank.

    BLAS always runs on one thread here, because its order of additions decides the signs of the vectors.
    """
    left, values = np.zeros((matrix.shape[0], dim)), np.zeros(dim)
    occur = np.flatnonzero(np.diff(matrix.indptr) + np.bincount(matrix.indices, minlength=matrix.shape[1]))
    if not len(occur):
        return left, values
    with threadpool_limits(1, user_api="blas"):
        vectors, falling = _singular(matrix[occur][:, occur], dim)
    rank = int((falling > falling[0] * len(occur) * np.finfo(np.float64).eps).sum())  # as numpy.linalg.matrix_rank does
    left[occur, :rank], values[:rank] = vectors[:, :rank], falling[:rank]
    return left, values


def _singular(matrix: sparse.csr_array, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute ``truncated_svd`` of a matrix in which every index has a non-empty row or a non-empty column.

    Returns min(dim, size of the matrix) vectors and values.
    """
    size = matrix.shape[0]
    if size <= 4 * dim:  # for a small matrix, ARPACK's iteration is not faster, and it is unstable
        every, values, _ = np.linalg.svd(matrix.toarray())
        return every[:, :dim], values[:dim]
    # ARPACK's iteration starts from the same vector each time
    start = generator("svd").standard_normal(size)
    vectors, rising, _ = svds(matrix, k=dim, v0=start, return_singular_vectors="u")
    order = np.argsort(-rising)
    return vectors[:, order], rising[order]
