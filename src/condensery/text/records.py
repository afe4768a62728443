"""The three things that a collection is made of, one at a time, as a reader yields them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be retrieved.

    ``document`` is the id of the document that it was cut from; ``None`` where the source knows no documents: the
    passage is then a document of its own.
    """

    id: str
    title: str
    text: str
    document: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A question, or whatever is typed into a search box; ``answers`` where any of several texts answers it."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A text for pre-training that is not itself part of what is searched, as passages in reading order."""

    id: str
    title: str
    passages: list[str]
