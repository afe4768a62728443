"""Checkpoints: where weights come from, how they are checked, loaded and saved, and the metadata in a folder."""
