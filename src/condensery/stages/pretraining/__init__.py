"""Stages that initialise or pre-train an encoder on text."""
