"""Stages that load models that were trained elsewhere: a retriever, a cross-encoder."""
