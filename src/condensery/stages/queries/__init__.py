"""Stages that make queries for passages: extracted, generated or read from files; training of a query generator."""
