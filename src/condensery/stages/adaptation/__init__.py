"""Stages that adapt a released retriever to a collection, and keep the result only where it is better."""
