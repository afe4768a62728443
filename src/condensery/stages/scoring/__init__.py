"""Stages that score pairs of a query and a passage with cross-encoders or retrievers."""
