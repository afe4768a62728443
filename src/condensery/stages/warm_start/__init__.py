"""Stages that initialise an encoder from the co-occurrences of tokens, without training."""
