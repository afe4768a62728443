"""The way from a recipe to its artifacts and tables: the graph of stages, the store, the executor."""
