"""Draw pairs of a passage and its context for human judgement.

A context is another passage of the same document, or one of the passage's queries. Pairs are drawn as in appendix A of
query-as-context pre-training (Wu et al. 2023): a random document, a random passage of the document, and a context for this
passage. Every document is drawn once before any document is drawn a second time. No pair is drawn twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.randomness import generator
from condensery.text.lines import field, read_objects
from condensery.text.table import Column, TextTable

PASSAGES, QUERIES = "passage-passage", "passage-query"  # the kinds of pairs, by their names in tables
NO_ROW = -1

Chosen = tuple[int, int]  # row of the passage; row of the other passage, or index among the passage's queries


@dataclass(frozen=True)
class Pair:
    """A passage and its context. ``context_row`` is ``NO_ROW`` if the context is a query."""

    kind: str
    row: int
    context_row: int
    id: str
    context_id: str
    text: str
    context: str


class Pairs:
    """The passage-passage and passage-query pairs of a table, in a random order that depends only on ``seed``.

    Args:
        passages: table with the columns id, document and text; the passages of a document are consecutive rows.
        queries: file of predicted queries, with one line for each passage in row order, {"id": ..., "queries": [...]}; None =
            no queries.
        seed: seed of the random order.

    Raises:
        UserError: the file of queries does not fit the table of passages, or there is no pair of a requested kind.
    """

    def __init__(self, passages: TextTable, queries: Path | None, seed: int) -> None:
        self.passages, self.queries, self.seed = passages, queries, seed
        self.starts = passages.runs("document")
        self.kinds = [PASSAGES] if queries is None else [PASSAGES, QUERIES]
        self._of_each = np.zeros(len(passages), np.int32)  # number of queries of each passage
        if not len(self.passages) or (np.diff(self.starts) < 2).all():
            raise UserError(
                f"{self.passages.path}: no document has two passages, so there is no passage-passage pair to audit;"
                " give data that says which passages belong to one document, or make the passages shorter"
            )
        if self.queries is not None:
            for row, texts in self._read_queries(self.queries):
                self._of_each[row] = len(texts)
            if not self._of_each.any():
                raise UserError(f"{self.queries}: no passage has a query, so there is no passage-query pair to audit")

    def _read_queries(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yield the row of each passage and the distinct queries of the passage. Empty queries are left out."""
        ids: Column[str] = self.passages.column("id")
        row = -1
        lines = zip(read_objects(path), chain(ids, repeat(None)), strict=False)
        for row, ((place, record), expected) in enumerate(lines):
            if field(record, "id", place, str) != expected:
                known = f"the passage of this row is {shown(expected)!r}" if expected else "there are no more passages"
                raise UserError(f"{place}: id is {shown(str(record['id']))!r}, but {known}; predict the queries again")
            texts: list[Any] = field(record, "queries", place, list)
            if not all(isinstance(text, str) for text in texts):
                raise UserError(f'{place}: the field "queries" must be a list of strings')
            yield row, list(dict.fromkeys(text for text in texts if text.strip()))
        if row + 1 < len(ids):
            raise UserError(f"{path}: {row + 1:,} lines for {len(ids):,} passages; predict the queries again")

    def available(self, kind: str) -> int:
        """Return the number of different pairs of a kind."""
        if kind == QUERIES:
            return int(self._of_each.sum(dtype=np.int64))
        sizes = np.diff(self.starts)
        return int((sizes * (sizes - 1) // 2).sum())

    def draw(self, kind: str, count: int) -> list[Pair]:
        """Return the first ``count`` pairs of a kind, or all pairs if there are fewer.

        A larger ``count`` only adds pairs: with 20 pairs, the first 10 are the same as with ``count=10``. For both kinds,
        the first pair of a document has the same passage, if this passage has a query.
        """
        of_document = self._with_passages if kind == PASSAGES else self._with_queries
        order = generator("audit", self.seed, "documents").permutation(len(self.starts) - 1)
        chosen: list[Chosen] = []
        waiting: Iterable[Iterator[Chosen]] = (of_document(int(document)) for document in order)
        while waiting and len(chosen) < count:  # one round: one pair of each document that still has pairs
            still = []
            for one in waiting:
                if (pair := next(one, None)) is not None:
                    chosen.append(pair)
                    still.append(one)
                if len(chosen) == count:
                    break
            waiting = still
        return self._read(kind, chosen)

    def _shuffled(self, document: int) -> NDArray[np.int64]:
        """Return the rows of a document in a random order, which is the same for both kinds of pairs."""
        rows = np.arange(self.starts[document], self.starts[document + 1])
        return generator("audit", self.seed, "passages", document).permutation(rows)

    def _with_passages(self, document: int) -> Iterator[Chosen]:
        """Yield every pair of passages of a document once. Pairs of neighbours in the random order come first."""
        rows = self._shuffled(document).tolist()
        for apart in range(1, len(rows)):
            yield from zip(rows[:-apart], rows[apart:], strict=True)

    def _with_queries(self, document: int) -> Iterator[Chosen]:
        """Yield every query of a document's passages once: first one query of each passage, then a second one, ..."""
        rows = self._shuffled(document)
        counts = self._of_each[rows]
        orders = {}
        for turn in range(int(counts.max(initial=0))):
            for row, of_passage in zip(rows.tolist(), counts.tolist(), strict=True):
                if turn < of_passage:
                    if turn == 0:
                        orders[row] = generator("audit", self.seed, "queries", row).permutation(of_passage)
                    yield row, int(orders[row][turn])

    def _read(self, kind: str, chosen: list[Chosen]) -> list[Pair]:
        ids, texts = self.passages.column("id"), self.passages.column("text")
        if kind == PASSAGES:
            return [Pair(kind, a, b, ids[a], ids[b], texts[a], texts[b]) for a, b in chosen]
        wanted = {row for row, _ in chosen}
        assert self.queries is not None
        queries = {row: of_passage for row, of_passage in self._read_queries(self.queries) if row in wanted}
        return [Pair(kind, row, NO_ROW, ids[row], "", texts[row], queries[row][which]) for row, which in chosen]
