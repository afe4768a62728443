"""Which tokens stand near each other in a text: counts, and vectors of tokens made of them without any training.

Shapes: V tokens of the vocabulary, d dimensions.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from condensery.progress import Task
from condensery.randomness import generator
from condensery.tokens.store import TokenStore

BLOCK = 1 << 20  # tokens whose pairs are counted together


def unigrams(store: TokenStore, size: int) -> NDArray[np.int64]:
    """How often each of ``size`` ids stands in the texts of ``store``: (V,)."""
    counts = np.zeros(size, np.int64)
    for first in range(0, store.token_count, BLOCK):
        counts += np.bincount(store.tokens[first : first + BLOCK], minlength=size)
    return counts


def cooccurrences(store: TokenStore, size: int, window: int, progress: Task | None = None) -> sparse.csr_array:
    """How often two tokens stand within ``window`` tokens of each other in one document, a pair at distance s counted 1 / s.

    The counts are whole multiples of 1 / lcm(1, ..., window), which the result counts in: they are exact, and the same
    whatever the order. Memory holds the pairs of one block and the distinct pairs, V² at most.

    Returns:
        (V, V) float64, symmetric.
    """
    unit = math.lcm(*range(1, window + 1))
    total = sparse.csr_array((size, size), dtype=np.float64)
    for first in range(0, store.token_count, BLOCK):
        stop = min(first + BLOCK, store.token_count)
        ids = np.asarray(store.tokens[first : stop + window]).astype(np.int32)
        document = np.searchsorted(store.document_starts, np.arange(first, first + len(ids)), side="right")
        left, right, weights = [], [], []
        for distance in range(1, window + 1):
            places = np.arange(min(stop - first, len(ids) - distance))
            places = places[document[places] == document[places + distance]]
            left.append(ids[places])
            right.append(ids[places + distance])
            weights.append(np.full(len(places), unit // distance, np.float64))
        pairs = np.concatenate(left), np.concatenate(right)
        total += sparse.coo_array((np.concatenate(weights), pairs), shape=(size, size)).tocsr()
        if progress is not None:
            progress.advance(stop - first)
    return (total + total.T).tocsr()


def positive_pmi(counts: sparse.csr_array, smoothing: float = 0.75) -> sparse.csr_array:
    """Positive pointwise mutual information max(0, log p(a, b) / (p(a) p(b))) of counted pairs: (V, V).

    Contexts b are drawn with their counts to the power ``smoothing`` (Levy, Goldberg and Dagan 2015, eq. 3; Levy and Goldberg
    2014 show that skip-gram with negative sampling factorises this matrix).
    """
    pairs = counts.tocoo()
    tokens = np.asarray(counts.sum(axis=1), np.float64).ravel()
    contexts = np.asarray(counts.sum(axis=0), np.float64).ravel() ** smoothing
    expected = tokens[pairs.row] * (contexts / contexts.sum())[pairs.col]
    information = np.log(pairs.data / expected)
    kept = information > 0
    kept_pairs = pairs.row[kept], pairs.col[kept]
    return sparse.coo_array((information[kept], kept_pairs), shape=counts.shape).tocsr()


def truncated_svd(matrix: sparse.csr_array, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The left singular vectors (V, dim) of the largest singular values (dim,), falling; zeros behind the V-th."""
    size = matrix.shape[0]
    left, values = np.zeros((size, dim)), np.zeros(dim)
    number = min(dim, size)
    if size <= 4 * dim:  # too small for an iteration to pay, or to be stable
        every, falling, _ = np.linalg.svd(matrix.toarray())
        left[:, :number], values[:number] = every[:, :number], falling[:number]
        return left, values
    from scipy.sparse.linalg import svds  # takes a moment to import

    # ARPACK's iteration starts from the same vector each time
    start = generator("svd").standard_normal(size)
    found, rising, _ = svds(matrix, k=dim, v0=start, return_singular_vectors="u")
    order = np.argsort(-rising)
    return found[:, order], rising[order]
