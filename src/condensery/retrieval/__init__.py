"""Ranking passages by words and by vectors: BM25, dense indexes, fusion, reranking, mining, runs."""
