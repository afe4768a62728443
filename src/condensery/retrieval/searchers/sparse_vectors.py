"""BM25 as sparse vectors, for a vector store that knows how rare a term is among its passages, such as Qdrant.

A score of BM25 (``indexes.bm25``) is a sum over terms of products of three factors: how often the term is in the query,
its idf, and tf / (tf + k1 * (1 - b + b * |p| / average |p|)). The first factor is the query's vector, the last the passage's.
The store adds the idf: a new passage changes the idf, but no stored vector.

A term's number is the CRC-32 of its letters, so nobody has to keep a list of terms. Of 100,000 terms about two share one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

SparseVector = dict[int, float]  # the number of a term -> its weight


def query_vector(terms: Sequence[str]) -> SparseVector:
    """Return the vector of a query: how often each term is in it."""
    return _numbered(Counter(terms))


def passage_vector(terms: Sequence[str], k1: float, b: float, average: float) -> SparseVector:
    """The vector of a passage: the weight of each term without its idf. ``average``: mean number of terms of a passage."""
    norm = k1 * (1 - b + b * len(terms) / average)
    return _numbered({term: count / (count + norm) for term, count in Counter(terms).items()})


def _numbered(weights: Mapping[str, float]) -> SparseVector:
    vector: SparseVector = {}
    for term, weight in weights.items():
        number = crc32(term.encode())
        vector[number] = vector.get(number, 0.0) + weight
    return vector
