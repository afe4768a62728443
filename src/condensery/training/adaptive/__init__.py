"""Adaptive batch scheduling (Zhao et al. 2023): batches of queries whose passages are hard negatives of each other."""
