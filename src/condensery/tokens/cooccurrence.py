"""Which tokens stand near each other in a text: counts, and vectors of tokens made of them without any training.

Shapes: V tokens of the vocabulary, d dimensions.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds  # has a BLAS of its own, and only what is loaded can be limited
from threadpoolctl import threadpool_limits

from condensery.randomness import generator
from condensery.system.progress import ProgressTask
from condensery.tokens.store import TokenStore

BLOCK = 1 << 22  # tokens, or pairs of them, that are counted together


def unigrams(store: TokenStore, size: int) -> NDArray[np.int64]:
    """How often each of ``size`` ids stands in the texts of ``store``: (V,)."""
    counts = np.zeros(size, np.int64)
    for first in range(0, store.token_count, BLOCK):
        counts += np.bincount(store.tokens[first : first + BLOCK], minlength=size)
    return counts


def cooccurrences(store: TokenStore, size: int, window: int, progress: ProgressTask | None = None) -> sparse.csr_array:
    """How often two tokens stand within ``window`` tokens of each other in one document, a pair at distance s counted 1 / s.

    The unit of the result is 1 / lcm(1, ..., window), so that what is added up are whole numbers: below 2⁵³ of them
    (for window 10 a pair that stands side by side 3.6e12 times) it is exact, and the same whatever the order. Texts of
    one document go on from each other. Memory holds the pairs of one block, and the distinct pairs: V² at most.

    Args:
        store: the documents.
        size: V, more than any id.
        window: from 1 to 40, the largest whose unit is exact.
        progress: gets the number of tokens that are done.

    Returns:
        (V, V) float64, symmetric.
    """
    unit = math.lcm(*range(1, window + 1))
    step = max(1, BLOCK // window)
    total = sparse.csr_array((size, size), dtype=np.float64)  # the smaller id first
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
        if progress is not None:
            progress.advance(stop - first)
    return (total + total.T).tocsr()


def positive_pmi(counts: sparse.csr_array, smoothing: float = 0.75) -> sparse.csr_array:
    """Positive pointwise mutual information max(0, log p(a, b) / (p(a) p(b))) of counted pairs: (V, V).

    Contexts b are drawn with their counts to the power ``smoothing`` (Levy, Goldberg and Dagan 2015, eq. 3; Levy and Goldberg
    2014 show that skip-gram with negative sampling factorises this matrix). In what unit is counted does not matter.
    """
    if not counts.nnz:
        return counts
    pairs = counts.tocoo()
    tokens = np.asarray(counts.sum(axis=1), np.float64).ravel()
    contexts = np.asarray(counts.sum(axis=0), np.float64).ravel() ** smoothing
    expected = tokens[pairs.row] * (contexts / contexts.sum())[pairs.col]
    information = np.log(pairs.data / expected)
    kept = information > 0
    kept_pairs = pairs.row[kept], pairs.col[kept]
    return sparse.coo_array((information[kept], kept_pairs), shape=counts.shape).tocsr()


def truncated_svd(matrix: sparse.csr_array, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The left singular vectors (V, dim) of the largest singular values (dim,), falling; zeros behind the matrix's rank.

    On one thread, however many there are: the order in which BLAS adds up decides the vectors' signs.
    """
    left, values = np.zeros((matrix.shape[0], dim)), np.zeros(dim)
    occur = np.flatnonzero(np.diff(matrix.indptr) + np.bincount(matrix.indices, minlength=matrix.shape[1]))
    if not len(occur):
        return left, values
    with threadpool_limits(1, user_api="blas"):
        vectors, falling = _singular(matrix[occur][:, occur], dim)
    rank = int((falling > falling[0] * len(occur) * np.finfo(np.float64).eps).sum())  # as numpy.linalg.matrix_rank
    left[occur, :rank], values[:rank] = vectors[:, :rank], falling[:rank]
    return left, values


def _singular(matrix: sparse.csr_array, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``truncated_svd`` of a matrix that has no empty rows and columns in common: min(dim, its size) vectors and values."""
    size = matrix.shape[0]
    if size <= 4 * dim:  # too small for an iteration to pay, or to be stable
        every, values, _ = np.linalg.svd(matrix.toarray())
        return every[:, :dim], values[:dim]
    # ARPACK's iteration starts from the same vector each time
    start = generator("svd").standard_normal(size)
    vectors, rising, _ = svds(matrix, k=dim, v0=start, return_singular_vectors="u")
    order = np.argsort(-rising)
    return vectors[:, order], rising[order]
