"""PAIR (Ren et al. 2021): a loss that also compares the positive with the negative passages."""
