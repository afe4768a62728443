"""Presentation of results: the table of a run, its training curves, and the passages retrieved for a question."""
