"""Indexes on disk, each of one collection, whose queries they are asked: what the stages search."""
