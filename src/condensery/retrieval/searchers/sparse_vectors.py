"""Represent texts as sparse vectors for BM25 in a vector store that computes the idf of its terms, such as Qdrant.

A BM25 score (``indexes.bm25``) is a sum over terms. Each summand is the product of three factors:

- the frequency of the term in the query, which is stored in the query vector;
- the idf of the term, by which the store multiplies;
- tf / (tf + k1 * (1 - b + b * |p| / average |p|)), which is stored in the passage vector.

A new passage changes the idf, but does not change stored vectors.

The index of a term is the CRC-32 of its characters, so that no vocabulary has to be stored. Among 100,000 terms, about two
terms share a number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

SparseVector = dict[int, float]  # term number -> weight


def query_vector(terms: Sequence[str]) -> SparseVector:
    """Return the vector of a query: the frequency of each term."""
    return _numbered(Counter(terms))


def passage_vector(terms: Sequence[str], k1: float, b: float, average: float) -> SparseVector:
    """Return the vector of a passage: the weight of each term, without the idf.

    Args:
        terms: the terms of the passage in order.
        k1: term frequency saturation.
        b: length normalisation.
        average: mean number of terms per passage.
    """
    norm = k1 * (1 - b + b * len(terms) / average)
    return _numbered({term: count / (count + norm) for term, count in Counter(terms).items()})


def _numbered(weights: Mapping[str, float]) -> SparseVector:
    vector: SparseVector = {}
    for term, weight in weights.items():
        number = crc32(term.encode())
        vector[number] = vector.get(number, 0.0) + weight
    return vector
