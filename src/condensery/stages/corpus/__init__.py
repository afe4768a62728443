"""Stages that turn the user's files into token ids, passages, queries and sentences."""
