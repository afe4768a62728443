"""Stages that build the index of one retriever: vectors, an approximate index, BM25."""
