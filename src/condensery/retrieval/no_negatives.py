"""Find the passages that must be excluded as negatives of a query: relevant passages and their duplicates.

Duplicates are found by their text (``text/same_texts.py``):

- passages that have the text of a relevant passage, whatever their title;
- passages that are relevant to another query with the same text;
- passages whose text is the text of the query, or that are the query itself (``own_passages``).

The first of several passages with the same text represents all these passages. Likewise, the first of several queries with
the same text represents all these queries. The lists therefore stay short even if a text occurs many times.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.errors import number_of
from condensery.retrieval.indexes.own_passages import own_passages
from condensery.text.collection import Collection
from condensery.text.ids import IdIndex
from condensery.text.same_texts import SameTexts, text_hashes
from condensery.tokens.ranges import ranges

Ids = NDArray[np.int64]
Rows = NDArray[np.integer]
ROW = 0xFFFFFFFF  # the bits of a pair that hold the passage


@dataclass(frozen=True)
class NoNegatives:
    """The passages that are excluded as negatives of some queries of a collection.

    Attributes:
        queries: groups of queries with the same text.
        passages: groups of passages with the same text.
        pairs: int64 (n,), the excluded pairs as (query << 32) + passage, ascending. The first query of a group represents the
            group, and so does the first passage.
    """

    queries: SameTexts
    passages: SameTexts
    pairs: Ids

    @classmethod
    def of(cls, collection: Collection, positives: Mapping[int, Rows], query_rows: Rows | None = None) -> "NoNegatives":
        """Build the object: find the excluded pairs by comparing the texts of queries and passages.

        Args:
            collection: the collection of the queries and passages.
            positives: query row -> its relevant passages.
            query_rows: int (q,), further queries that will be looked up, besides the keys of ``positives``; None = none.
        """
        numbers = [len(passages) for passages in positives.values()]
        queries = np.repeat(np.fromiter(positives, np.int64), numbers)
        relevant = np.concatenate([np.empty(0, np.int64), *positives.values()]).astype(np.int64)
        asked = np.unique(queries if query_rows is None else np.concatenate([queries, query_rows])).astype(np.int64)
        hashes, texts = text_hashes(collection.queries.column("text").take(asked)), collection.passage_texts
        index = IdIndex.of(hashes)
        same = SameTexts.of(IdIndex(index.hashes, asked[index.rows]))
        places, own = texts.with_texts(hashes)
        itself = own_passages(collection, asked)
        found = [(queries, relevant), (asked[places], own), (asked[itself >= 0], itself[itself >= 0])]
        pairs = [packed(same.first(query), texts.same.first(passage)) for query, passage in found]
        return cls(same, texts.same, np.unique(np.concatenate(pairs)))

    def among(self, query_rows: NDArray[np.integer], passages: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return a mask (n, ...): True if the passage (n, ...) is excluded as a negative of its query (n,)."""
        queries = self.queries.first(query_rows).reshape(-1, *[1] * (passages.ndim - 1))
        found: NDArray[np.bool_] = np.isin(packed(queries, self.passages.first(passages)), self.pairs)
        return found & (passages >= 0)

    def lists(self, query_rows: NDArray[np.integer]) -> tuple[Ids, Ids]:
        """Return the passages excluded as negatives of queries (n,): the concatenated lists, and their lengths (n,).

        Each list is ascending, and contains only the first of several passages with the same text.
        """
        queries = self.queries.first(query_rows)
        begins, ends = (np.searchsorted(self.pairs, rows << 32) for rows in (queries, queries + 1))
        return self.pairs[ranges(begins, ends - begins)] & ROW, ends - begins

    def numbers(self, query_rows: NDArray[np.integer]) -> Ids:
        """Return how many passages are excluded as negatives of each query (n,). Duplicates count separately."""
        flat, lengths = self.lists(query_rows)
        ends = np.cumsum(np.concatenate([[0], self.passages.numbers(flat)]))[np.cumsum(np.concatenate([[0], lengths]))]
        return np.diff(ends)

    def by_text(self, positives: Mapping[int, NDArray[np.integer]]) -> int:
        """Return how many passages are excluded for their text alone, summed over all queries. Positives do not count.

        ``positives``: query row -> its relevant passages.
        """
        return int(self.numbers(np.fromiter(positives, np.int64)).sum()) - sum(map(len, positives.values()))


def left_out_by_text(number: int, label: str) -> dict[str, int]:
    """Print how many passages are excluded for their text alone, and return the count for a manifest; {} if no passage is."""
    if not number:
        return {}
    what = number_of(number, "passages are left out of a query's negatives")
    print(f"[{label}] {what}: the text equals that of the query or of a relevant passage", flush=True)
    return {"left_out_by_text": number}


def packed(queries: NDArray[np.integer], passages: NDArray[np.integer]) -> Ids:
    """Pack each pair of row numbers into one integer, (query << 32) + passage."""
    return (queries.astype(np.int64, copy=False) << 32) + passages
