"""Stages that train on judged queries or on labelled sentence examples."""
