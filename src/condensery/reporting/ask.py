"""Find the best passages for a query that the user types, and print them."""

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from condensery.errors import UserError, shown
from condensery.reporting.plain import DROPPED, SPACES
from condensery.retrieval.indexes.opening import Search
from condensery.retrieval.searchers.base import Hit, hits_of
from condensery.text.collection import Collection
from condensery.text.words import between_letters

CHARACTERS = 600  # maximum number of characters shown of a passage
VISIBLE = {  # code point of a control character -> visible replacement
    **dict.fromkeys([*DROPPED, *SPACES], "\ufffd"),
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
}
for mark in "\u061c\u200e\u200f":  # marks that do not reverse the text after them are kept
    del VISIBLE[ord(mark)]


def ask(text: str, search: Search, collection: Collection, k: int = 5) -> list[Hit]:
    """Return the ``k`` best passages for the query ``text``, best first. Raises ``UserError`` if the query is empty."""
    if not text.strip():
        raise UserError("ask: the text is empty; write a query")
    scores, rows = search([text], k)
    return hits_of(scores[0], rows[0], [collection.passages.column(name) for name in ("id", "title", "text")])


def show(text: str, answers: list[Hit], console: Console | None = None) -> None:
    """Print the query ``text`` and its results to a terminal.

    Long queries and passages are truncated. Characters that control a terminal are replaced by visible symbols.
    """
    console = console or Console()
    console.print(Text.assemble(("? ", "bold"), shown(in_line(text), CHARACTERS)))
    if not answers:
        console.print("no passage shares a word with it")
    for answer in answers:
        end = between_letters(answer.text, CHARACTERS)
        excerpt = answer.text if len(answer.text) <= CHARACTERS else answer.text[:end].rstrip() + " …"
        parts = (str(answer.rank), in_line(answer.title), in_line(answer.id), f"{answer.score:.2f}")
        head = " · ".join(part for part in parts if part)
        console.print(Panel(Text(printable(excerpt)), title=Text(head), title_align="left"))


def in_line(text: str) -> str:
    """Return ``printable(text)`` in one line."""
    return " ".join(printable(text).split())


def printable(text: str) -> str:
    """Replace control characters by visible symbols (␛ for ESC), except line feeds and tabs.

    Other characters that a terminal interprets or cannot show become \ufffd: C1 controls, direction marks and lone
    surrogates.
    """
    return text.replace("\r\n", "\n").translate(VISIBLE)
