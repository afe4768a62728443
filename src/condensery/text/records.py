"""The three records that a reader yields: passages, queries and documents."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be retrieved.

    ``document`` is the id of the document that the passage was cut from. It is ``None`` where the source knows no
    documents; each passage is then a document of its own.
    """

    id: str
    title: str
    text: str
    document: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A question, or any text that is typed into a search box. ``answers``: the known answers, any of which is right."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A text for pre-training, as passages in reading order. Documents are not searched."""

    id: str
    title: str
    passages: list[str]
