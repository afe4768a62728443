"""Lexical and dense retrieval: BM25, dense indexes, fusion, reranking, hard-negative mining, run files."""
