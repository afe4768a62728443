"""Searchers of a program of your own: texts in, passages out. They are public under the package's name."""
