"""Retrievers that the papers' tables compare with, one folder each: its stages and its models.

Each folder has the config classes of its stages in ``config.py``, which needs only pydantic, and beside it the modules that
the stages run. The registry of stages finds a new folder automatically. No other package imports a baseline.
"""
