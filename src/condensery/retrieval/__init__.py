"""Vectors and words to rankings: BM25, dense indexes, mining, runs."""
