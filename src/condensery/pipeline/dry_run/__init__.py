"""Estimates of a recipe's cost before anything is computed: steps, tokens, FLOPs, disk space and hours."""
