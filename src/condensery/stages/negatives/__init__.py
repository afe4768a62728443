"""Stages that mine, read, filter and audit hard negatives."""
