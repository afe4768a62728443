"""BM25 as sparse vectors, for a vector store that knows how rare a term is among its passages, such as Qdrant.

A score of BM25 (``retrieval.bm25``) is a sum over terms of three factors: how often the term is in the query, its idf, and
tf / (tf + k1 * (1 - b + b * |p| / average |p|)). The first is the vector of the query, the last that of the passage. The idf
is the store's: every passage that is added changes it, and no vector that is stored already.

A term's number is the CRC-32 of its letters, so nobody has to keep a list of terms. Of 100,000 terms about two share one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

SparseVector = dict[int, float]  # the number of a term -> its weight


def query_vector(terms: Sequence[str]) -> SparseVector:
    """How often each term is in a query."""
    return _numbered(Counter(terms))


def passage_vector(terms: Sequence[str], k1: float, b: float, average: float) -> SparseVector:
    """What each term of a passage weighs, without its idf; ``average``: terms of a passage."""
    norm = k1 * (1 - b + b * len(terms) / average)
    return _numbered({term: count / (count + norm) for term, count in Counter(terms).items()})


def _numbered(weights: Mapping[str, float]) -> SparseVector:
    vector: SparseVector = {}
    for term, weight in weights.items():
        number = crc32(term.encode())
        vector[number] = vector.get(number, 0.0) + weight
    return vector
