"""Stages that train on judged queries and examples."""
