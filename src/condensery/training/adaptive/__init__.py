"""Adaptive batch scheduling (Zhao et al. 2023): batches of queries that are hard to tell apart."""
