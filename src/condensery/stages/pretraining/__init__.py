"""Stages that make an encoder from text."""
