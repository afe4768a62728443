"""A collection on disk: passages, queries and judgements. Opening it reads no text."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.system.files import load_array, read_json
from condensery.text.same_texts import PassageTexts
from condensery.text.table import Column, TextTable

SPLITS = ("train", "dev", "test", "dl19", "dl20")
DESCRIPTION = "collection.json"


@dataclass(frozen=True, slots=True)
class Qrels:
    """The judgements of one split, sorted by query row and passage row. *Shape:* three int32 arrays (n,).

    A passage is relevant to the query if the grade is at least ``relevant_from``.
    """

    query_rows: NDArray[np.int32]
    passage_rows: NDArray[np.int32]
    grades: NDArray[np.int32]
    relevant_from: int = 1

    def __len__(self) -> int:
        return len(self.grades)

    @property
    def query_set(self) -> NDArray[np.int32]:
        """The distinct rows of the judged queries, ascending."""
        return np.unique(self.query_rows)

    def of(self, query_rows: NDArray[np.integer]) -> "Qrels":
        """Return only the judgements of the queries ``query_rows``."""
        kept = np.isin(self.query_rows, query_rows)
        return Qrels(self.query_rows[kept], self.passage_rows[kept], self.grades[kept], self.relevant_from)

    def positives(self) -> dict[int, NDArray[np.int32]]:
        """Return the relevant passages of each query: query row -> passage rows, in the order of the query rows."""
        relevant = self.grades >= self.relevant_from
        queries, starts = np.unique(self.query_rows[relevant], return_index=True)
        passages = np.split(self.passage_rows[relevant], starts[1:])
        return dict(zip(queries.tolist(), passages, strict=True)) if len(queries) else {}


def _table(name: str) -> "cached_property[TextTable]":
    """Return the attribute for a collection's table ``name``, which is opened on first use."""
    return cached_property(lambda collection: TextTable(collection.folder / f"{name}.arrow"))


class Collection:
    """A collection as a reader wrote it: the artifact that all later stages start from.

    Attributes:
        name: the name of the collection in tables.
        content_hash: a hash of every id, title, text and judgement and of their order, 32 hexadecimal characters.
        passages: table with the columns id, title, text, document. The passages of a document are consecutive rows.
        queries: table with the columns id, text: the queries of all splits.
        documents: table with the columns id, title, passages (a list of strings): separate documents for
            pre-training. ``None`` if the passages themselves are the text for pre-training.
        splits: the splits among train, dev, test, dl19 and dl20 that have judgements. A split that has only answers is
            not listed.
        description: the content of ``collection.json``: counts, numbers of dropped items, warnings, content hash.

    Raises ``UserError`` when ``folder`` holds no complete collection.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / DESCRIPTION).is_file():
            raise UserError(f"{self.folder}: no collection ({DESCRIPTION} is missing); give the folder of a collection")
        self.description: dict[str, Any] = read_json(self.folder / DESCRIPTION)
        self.name, self.content_hash = str(self.description["name"]), str(self.description["content_hash"])
        counts: dict[str, dict[str, int]] = self.description["splits"]
        self.splits: list[str] = [split for split in SPLITS if counts.get(split, {}).get("judgements")]

    def __repr__(self) -> str:
        return f"Collection({self.name}: {len(self.passages):,} passages, {len(self.queries):,} queries)"

    passages = _table("passages")
    queries = _table("queries")

    @cached_property
    def documents(self) -> TextTable | None:
        """The separate documents for pre-training, or ``None``."""
        return TextTable(self.folder / "documents.arrow") if self.description["documents"] else None

    @cached_property
    def answers(self) -> Column[list[str]] | None:
        """The list of known answers of each query, which may be empty; ``None`` if no query has answers."""
        return TextTable(self.folder / "answers.arrow").column("answers") if self.description.get("answers") else None

    @cached_property
    def given_negatives(self) -> NDArray[np.int32] | None:
        """The input's hard negatives, int32 (n, 2): query row and passage row, by query, then best first; None = none."""
        return load_array(self.folder / "negatives.npy") if self.description.get("negatives") else None

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """The first passage row of each document, and at the end the number of passages. *Shape:* (documents + 1,)."""
        return self.passages.runs("document")

    @cached_property
    def passage_texts(self) -> PassageTexts:
        """The index of the passages by their text, which finds equal texts. Building it reads all passages."""
        return PassageTexts(self.passages)

    def unjudged(self) -> NDArray[np.int64]:
        """Return the rows of the queries that are in no split, ascending. ``data.unlabelled_queries`` keeps such queries."""
        in_splits = [self.questions(split) for split in self.description["splits"]]
        return np.setdiff1d(np.arange(len(self.queries)), np.concatenate([np.empty(0, np.int64), *in_splits]))

    def qrels(self, split: str) -> Qrels:
        """Return the judgements of ``split``. Raises ``UserError`` when the collection has no such split."""
        if split not in self.splits:
            there = ", ".join(self.splits) or "none"
            raise UserError(f'the collection {self.name} has no split "{split}" (its splits: {there}); set data.splits')
        rows = load_array(self.folder / f"qrels-{split}.npy")
        relevant_from = self.description["splits"][split].get("relevant_from", 1)
        query_rows, passage_rows, grades = (np.ascontiguousarray(column) for column in rows.T)
        return Qrels(query_rows, passage_rows, grades, relevant_from)

    def questions(self, split: str) -> NDArray[np.int64]:
        """Return the ascending rows of the queries of ``split``: judged queries, or queries that have only answers.

        Raises ``UserError`` when the collection has no such split.
        """
        path = self.folder / f"questions-{split}.npy"
        if split not in self.splits and split in self.description["splits"]:
            return load_array(path)
        return self.qrels(split).query_set.astype(np.int64)
