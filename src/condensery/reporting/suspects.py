"""Show suspected false negatives: as a sheet for annotation, as a table, and on the page of a run."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from condensery.reporting.examples import beginning
from condensery.reporting.table import MISSING, Cell, Table
from condensery.reporting.table_formats import show
from condensery.retrieval.relabelled import PASSAGE, PASSAGE_TEXT, QUERY, QUERY_TEXT, RELEVANT, named
from condensery.retrieval.suspects import Suspects
from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.text.sheets import cell

COLUMNS = (RELEVANT, QUERY_TEXT, PASSAGE_TEXT, "positive", "score", "score of the positive", "ratio", QUERY, PASSAGE)
FILE = "suspects.json"
SHOWN, PRINTED = 30, 10  # maximum number of suspects on a page, and in a terminal


def sheet_lines(suspects: Suspects, collection: Collection, rows: int) -> list[list[object]]:
    """Return the lines of a sheet with the columns ``COLUMNS``: at most ``rows`` suspects, the most suspicious first."""
    found = _most_suspicious(suspects, collection, rows)
    return [["", *map(cell, texts), *numbers, *ids] for ids, texts, numbers in found]


def shown(suspects: Suspects, collection: Collection, left_out: bool) -> dict[str, Any]:
    """Return the content of ``FILE``, from which the page and the terminal show the suspects.

    ``left_out``: whether mining excluded the suspects; if not, they are among the negatives.
    """
    items = []
    for ids, texts, numbers in _most_suspicious(suspects, collection, SHOWN):
        shown_texts = zip(("query", "passage", "positive"), map(beginning, texts), strict=True)
        items.append({"ids": list(ids), "numbers": numbers, **dict(shown_texts)})
    return {"suspects": len(suspects.queries), "left_out": left_out, "items": items}


def about(found: dict[str, Any]) -> str:
    """Return two sentences that explain the suspects."""
    what = "that mining left out, because they score nearly as high as a positive" if found["left_out"] else (
        "among the negatives, with the highest scores relative to a positive"
    )  # fmt: skip
    return (
        f"{found['suspects']:,} passages {what}; nobody has judged them. Fill in the column {RELEVANT} of sheet.csv with"
        " yes or no, and set the key relabel of the mining stage to this file."
    )


def lines(found: dict[str, Any]) -> list[list[str | tuple[str, str]]]:
    """Return the lines of the page's table: numbers, then texts.

    The texts are in ``<bdi>`` elements, because they may be right-to-left.
    """
    return [
        [_ratio(item), *item["numbers"][:2], *(("bdi", item[name]) for name in ("query", "passage", "positive"))]
        for item in found["items"]
    ]


def show_suspects(folder: Path) -> None:
    """Print the most suspicious passages of a finished audit."""
    found = read_json(folder / FILE)
    items = found["items"][:PRINTED]
    names = [" · ".join(item["ids"]) for item in items]
    texts = [(_ratio(item), *item["numbers"][:2], beginning(item["passage"], 60)) for item in items]
    cells = [[Cell(text) for text in line] for line in texts]
    header = ["ratio", "score", "positive's score", "passage"]
    show(Table("Suspected false negatives: query · passage", header, names, cells, notes=[about(found)]))


def _most_suspicious(
    suspects: Suspects, collection: Collection, most: int
) -> Iterator[tuple[Sequence[str], Sequence[str], list[str]]]:
    """Yield (ids, texts, numbers) for at most ``most`` suspects, the most suspicious first.

    The ids are the ids of query and passage. The texts are the query, the passage and the positive. The numbers are the
    passage's score, the positive's score and their ratio, as strings; a string is empty for NaN.
    """
    queries, passages = collection.queries.column("text"), collection.passages.column("text")
    for at in range(min(most, len(suspects.queries))):
        query, passage, positive = (int(of[at]) for of in (suspects.queries, suspects.passages, suspects.positives))
        values = (suspects.scores[at], suspects.positive_scores[at], suspects.ratios[at])
        numbers = ["" if math.isnan(value) else f"{float(value):.4g}" for value in values]
        texts = queries[query], passages[passage], passages[positive] if positive >= 0 else ""
        yield named(collection, query, passage), texts, numbers


def _ratio(item: dict[str, Any]) -> str:
    return str(item["numbers"][2]) or MISSING
