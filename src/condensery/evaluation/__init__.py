"""Evaluation of rankings: metrics per query, and significance tests of the difference between two systems."""
