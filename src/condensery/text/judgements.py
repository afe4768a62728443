"""Collect judgements and hard negatives by id while a collection is written, check them, and convert ids to rows."""

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.text.hashes import id_hash
from condensery.text.ids import IdIndex, KeptIds
from condensery.text.lines import Places

Rows = NDArray[np.int32]
HIGHEST = 1_000_000  # highest grade, because trec_eval makes an array as long as the highest grade, for each query
Hint = Callable[[str], str]  # unknown id -> hint that names a known id that looks like it


class Judgements:
    """The judgements of one split in the order in which they were added: ids, grades and places, without texts."""

    def __init__(self, split: str) -> None:
        self.split = split
        self.queries, self.passages, self.grades, self.places = KeptIds(), KeptIds(), array("i"), Places()

    def add(self, query_id: str, passage_id: str, grade: int, where: str) -> None:
        """Add one judgement. Raises ``UserError`` for a grade beyond ``HIGHEST``."""
        if abs(grade) > HIGHEST:
            raise UserError(f"{where}: the grade {grade} is too large; grades lie between -{HIGHEST:,} and {HIGHEST:,}")
        self.queries.add(query_id)
        self.passages.add(passage_id)
        self.grades.append(grade)
        self.places.add(where)

    def resolve(
        self, queries: IdIndex, passages: IdIndex, dropped: set[int], like_query: Hint, like_passage: Hint
    ) -> tuple[Rows, int]:
        """Convert the judgements to rows of the collection.

        Exact repetitions, and judgements of passages whose hash is in ``dropped``, are left out.

        Args:
            queries, passages: indexes from id to row.
            dropped: hashes of the ids of passages that were left out of the collection.
            like_query, like_passage: functions that return the hint for an unknown id.

        Returns:
            Two values: the sorted judgements, int32 (n, 3), as query row, passage row and grade; and the number of
            judgements that were left out.

        Raises:
            UserError: an id is unknown, a pair has two grades, or a query has no relevant passage.
        """
        passage_hashes = self.passages.hashes
        query_rows = queries.find(self.queries.hashes)
        passage_rows = passages.find(passage_hashes)
        kept = ~np.isin(passage_hashes, np.array(sorted(dropped), np.uint64))
        self._complain(query_rows < 0, "no query has this query id", self.queries, like_query)
        self._complain((passage_rows < 0) & kept, "no passage has this passage id", self.passages, like_passage)
        triples = np.stack([query_rows, passage_rows, np.frombuffer(self.grades, np.int32)], axis=1)  # (judgements, 3)
        places = np.flatnonzero(kept)
        places = places[np.lexsort(triples[places].T[::-1])]
        rows = triples[places]
        pair_again = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
        contradiction = pair_again & (rows[1:, 2] != rows[:-1, 2])
        if contradiction.any():
            at = int(np.flatnonzero(contradiction)[0])
            first, second = sorted(places[[at, at + 1]].tolist())
            raise UserError(
                f"{self.places[second]}: another grade for the pair judged at {self.places[first]}; keep one"
            )
        unique = np.concatenate([[True], ~pair_again]) if len(rows) else np.zeros(0, bool)
        self._check_positives(rows, places)
        return rows[unique].astype(np.int32), len(triples) - int(unique.sum())

    def _complain(self, wrong: NDArray[np.bool_], message: str, ids: KeptIds, like: Hint) -> None:
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            more = f" (and {int(wrong.sum()) - 1:,} more lines)" if wrong.sum() > 1 else ""
            raise UserError(f"{self.places[first]}: {message}: {ids[first]!r}{more}{like(ids[first])}")

    def _check_positives(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        positive = rows[:, 2] > 0
        if not positive.any():
            raise UserError(
                f"{self.places.path(0)}: no judgement of the split {self.split} has a grade above 0; judge a passage as"
                f" relevant, or leave the split out: data.splits.{self.split}=null"
            )
        without = ~np.isin(rows[:, 0], rows[positive, 0])
        if without.any():
            count = len(np.unique(rows[without, 0]))
            at = int(places[without].min())
            first, name = self.places[at], self.queries[at]
            more = f" (and {count - 1:,} more queries)" if count > 1 else ""
            raise UserError(
                f"{first}: the query {name!r} of the split {self.split} has no positive passage (grade above 0){more};"
                " remove its lines, or judge a passage as relevant"
            )


class GivenNegatives:
    """The hard negatives that an input provides, in the order in which they were added: ids and places."""

    def __init__(self) -> None:
        self.queries, self.passages, self.counts, self.places = array("Q"), KeptIds(), array("q"), Places()

    def add(self, query_id: str, passage_ids: list[str], where: str) -> None:
        """Add the hard negatives of one query, best first."""
        self.queries.append(id_hash(query_id))
        for identifier in passage_ids:
            self.passages.add(identifier)
        self.counts.append(len(passage_ids))
        self.places.add(where)

    def resolve(self, queries: IdIndex, passages: IdIndex, dropped: set[int], like_passage: Hint) -> Rows:
        """Convert the hard negatives to rows of the collection.

        Negatives of queries that are not in the collection, and passages whose hash is in ``dropped``, are left out.

        Returns:
            Pairs of query row and passage row, int32 (n, 2), sorted by query. The negatives of a query keep their order.

        Raises:
            UserError: a passage is unknown.
        """
        hashes, counts = self.passages.hashes, np.frombuffer(self.counts, np.int64)
        query_rows = np.repeat(queries.find(np.frombuffer(self.queries, np.uint64)), counts)
        passage_rows = passages.find(hashes)
        kept = ~np.isin(hashes, np.array(sorted(dropped), np.uint64))
        unknown = np.flatnonzero((passage_rows < 0) & kept)
        if len(unknown):
            line = int(np.searchsorted(np.cumsum(counts), unknown[0], side="right"))
            name = self.passages[int(unknown[0])]
            raise UserError(
                f"{self.places[line]}: no passage has the id of this hard negative: {name!r}{like_passage(name)}"
            )
        rows = np.stack([query_rows, passage_rows], axis=1)[kept & (query_rows >= 0)]
        return rows[np.argsort(rows[:, 0], kind="stable")].astype(np.int32)
