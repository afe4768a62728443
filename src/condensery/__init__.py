"""Condensery: from raw text to a trained dense retriever and the table that shows whether it is better."""

__version__ = "0.1.0"
