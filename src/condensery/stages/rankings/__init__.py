"""Stages that make a ranking from other rankings: fusion, reranking, another system's run file."""
