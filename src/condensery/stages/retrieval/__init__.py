"""Stages that index, search, mine and rerank."""
