"""Estimates of a recipe's cost before anything is computed: steps, tokens, operations, disk and hours."""
