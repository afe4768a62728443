"""Adaptive batch scheduling (Zhao et al. 2023): the passage of each query is a hard negative for the rest of the batch."""
