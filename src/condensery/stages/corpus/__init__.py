"""Stages from the user's files to tokens, passages, queries and sentences."""
