"""Checkpoints: the sources of weights, how they are checked, loaded and saved, and the description in a folder."""
