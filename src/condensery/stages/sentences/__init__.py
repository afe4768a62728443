"""Stages for sentence tasks: their examples, and training on them."""
