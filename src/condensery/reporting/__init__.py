"""Presents results to people: the table of a run, its training curves, the passages found for a question."""
