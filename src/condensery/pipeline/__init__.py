"""Turns a recipe into artifacts and tables: the graph of stages, the store of artifacts, the executor of stages."""
