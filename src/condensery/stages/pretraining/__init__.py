"""Stages that pre-train an encoder on text."""
