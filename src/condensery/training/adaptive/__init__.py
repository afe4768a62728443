"""Adaptive batch scheduling (Zhao et al. 2023): each query's passage is a hard negative for the rest of the batch."""
