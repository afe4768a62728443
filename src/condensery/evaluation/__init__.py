"""Rankings to numbers: metrics per query, and whether a difference between two systems is more than chance."""
