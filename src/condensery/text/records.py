"""The three records that a reader yields: passages, queries and documents. Also the id of a file: its encoded path."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be retrieved.

    ``document`` is the id of the document that the passage was cut from. It is ``None`` if the input names no
    documents. Each passage is then its own document.
    """

    id: str
    title: str
    text: str
    document: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A question, or any text that is typed into a search box. ``answers``: all known correct answers."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A text for pre-training, as passages in reading order. A document is not part of the search index."""

    id: str
    title: str
    passages: list[str]


def percent_encoded(path: str) -> str:
    """Return the id that stands for a path: each white space character and each % is percent-encoded.

    Run files separate their columns by white space, so an id cannot contain it.
    """
    return "".join(quote(one) if one == "%" or one.isspace() else one for one in path)
