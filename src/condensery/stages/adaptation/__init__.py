"""Stages that adapt a released retriever to a collection, and keep the result only if it is better."""
