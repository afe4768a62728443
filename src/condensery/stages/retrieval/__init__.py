"""Stages that index, search, mine and rerank, and stages that load trained models."""
