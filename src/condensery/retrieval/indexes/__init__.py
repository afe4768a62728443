"""Indexes on disk, which the stages search. Each index belongs to one collection, and is searched with its queries."""
