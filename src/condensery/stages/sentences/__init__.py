"""Stages that make the examples of sentence tasks, or train on these examples."""
