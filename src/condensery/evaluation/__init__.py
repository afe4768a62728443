"""Evaluation of rankings: metrics per query, and tests whether a difference between two systems is more than chance."""
