"""Stages that train a bi-encoder or a cross-encoder on judged queries."""
