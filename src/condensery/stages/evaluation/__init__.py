"""Stages that evaluate models, rankings and data."""
