"""Ask a retriever anything: the best passages for a text, to be read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from condensery.errors import UserError
from condensery.retrieval.index import Retriever
from condensery.retrieval.ranking import Ranking
from condensery.text.collection import Collection

CHARACTERS = 600  # of a passage that are shown


@dataclass(frozen=True)
class Answer:
    """A passage that was found."""

    rank: int
    score: float
    id: str
    title: str
    text: str


def ask(
    text: str,
    retriever: Retriever,
    collection: Collection,
    k: int = 5,
    encode: Callable[[str], NDArray[np.floating]] | None = None,
) -> list[Answer]:
    """The ``k`` best passages for ``text``, best first.

    ``encode`` turns the text into its query vector (d,); a dense retriever needs it, BM25 reads the text itself.
    Raises ``UserError`` when the text is empty.
    """
    if not text.strip():
        raise UserError("ask: the text is empty")
    scores, rows = _search(text, retriever, k, encode)
    passages = collection.passages
    ids, titles, texts = (passages.column(name) for name in ("id", "title", "text"))
    found = [(float(score), int(row)) for score, row in zip(scores[0], rows[0], strict=True) if row >= 0]
    return [Answer(rank, score, ids[row], titles[row], texts[row]) for rank, (score, row) in enumerate(found, 1)]


def _search(text: str, retriever: Retriever, k: int, encode: Callable[[str], NDArray[np.floating]] | None) -> Ranking:
    if encode is not None:
        by_vector: Callable[[NDArray[np.floating], int], Ranking] = retriever.search_vectors  # type: ignore[attr-defined]
        return by_vector(np.asarray(encode(text), np.float32)[None], k)
    by_text: Callable[[list[str], int], Ranking] | None = getattr(retriever, "search_texts", None)
    if by_text is None:
        raise ValueError("a dense retriever needs `encode` to turn the text into a vector")
    return by_text([text], k)


def show(text: str, answers: list[Answer], console: Console | None = None) -> None:
    """Print the answers to a terminal; long passages are cut."""
    console = console or Console()
    console.print(Text.assemble(("? ", "bold"), text))
    if not answers:
        console.print("no passage shares a word with it")
    for answer in answers:
        shown = answer.text if len(answer.text) <= CHARACTERS else answer.text[:CHARACTERS].rstrip() + " …"
        head = " · ".join(part for part in (str(answer.rank), answer.title, answer.id, f"{answer.score:.2f}") if part)
        console.print(Panel(Text(shown), title=Text(head), title_align="left"))
