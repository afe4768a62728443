"""Stages that turn the user's files into a collection, passages and token ids."""
