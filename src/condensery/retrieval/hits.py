"""A passage that was found for a query."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hit:
    """Attributes: ``rank`` from 1, ``score`` of the retriever, and the passage."""

    rank: int
    score: float
    id: str
    title: str
    text: str
