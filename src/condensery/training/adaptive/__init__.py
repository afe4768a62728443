"""Adaptive batch scheduling (Zhao et al. 2023): a query's passage is a hard negative for the batch's other queries."""
