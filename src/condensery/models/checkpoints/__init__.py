"""Checkpoints: where weights come from, how they are checked, loaded and saved, and what a folder says of itself."""
