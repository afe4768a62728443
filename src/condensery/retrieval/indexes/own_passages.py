"""Leave out the own passages of queries that are passages themselves, as in ArguAna, Quora and CQADupStack.

A query's own passage does not answer the query. A passage is the query's own passage if it meets two conditions: it has the
query's id, and its text, its title, or title and text together equal the query's text (``text/same_texts.py``). An equal id
alone is not enough, because query 1 and passage 1 of MS MARCO are unrelated. A passage that a split judges relevant to the
query is not left out, because the judgements expect it in the ranking.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.ranking import Ranking, ordered
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection
from condensery.text.same_texts import plain


def own_passages(collection: Collection, query_rows: NDArray[np.integer], by_id: bool = False) -> NDArray[np.int64]:
    """Return the row number of each query's own passage (n,), -1 if there is none.

    Args:
        collection: the collection of the queries and passages.
        query_rows: int (n,), row numbers of the queries.
        by_id: the own passage is the passage with the query's id, whatever its text and judgements. This is BEIR's rule.
    """
    own: NDArray[np.int64] = collection.passages.rows_of(collection.queries.ids_at(query_rows))
    there = np.flatnonzero(own >= 0)
    if by_id or not len(there):
        return own
    queries = collection.queries.column("text").take(np.asarray(query_rows)[there])
    titles, texts = (collection.passages.column(name).take(own[there]) for name in ("title", "text"))
    same = [
        plain(query) in (plain(text), plain(title), plain(f"{title} {text}"))
        for query, title, text in zip(queries, titles, texts, strict=True)
    ]
    own[there[~np.array(same)]] = -1
    if any(same):
        own[_judged(collection, query_rows, own)] = -1
    return own


def _judged(collection: Collection, query_rows: NDArray[np.integer], passages: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,): True if any split has a judgement above 0 for the query (n,) and its passage (n,)."""
    pairs, judged = (np.asarray(query_rows, np.int64) << 32) + passages, np.zeros(len(passages), bool)
    for split in collection.splits:
        qrels = collection.qrels(split)
        relevant = (qrels.query_rows.astype(np.int64) << 32) + qrels.passage_rows
        judged |= np.isin(pairs, relevant[qrels.grades > 0])
    return judged


class WithoutOwn:
    """Wraps a ``CollectionRetriever`` so that ``search`` leaves out each query's own passage (``own_passages``).

    The wrapped retriever is searched one passage deeper, so that rankings keep their length. All other methods are those of
    the wrapped retriever.
    """

    def __init__(self, retriever: CollectionRetriever, collection: Collection, by_id: bool = False) -> None:
        self.retriever, self.collection, self.by_id = retriever, collection, by_id

    def __len__(self) -> int:
        return len(self.retriever)

    def __getattr__(self, name: str) -> Any:
        if name == "retriever":  # while an object is copied, the attribute does not exist yet
            raise AttributeError(name)
        return getattr(self.retriever, name)

    def own(self, query_rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the row number of each query's own passage (n,), -1 if there is none."""
        return own_passages(self.collection, query_rows, self.by_id)

    def depth(self, own: NDArray[np.int64], k: int) -> int:
        """Return how deep the wrapped retriever is searched for the k best passages, given the own passages (n,)."""
        return k if (own < 0).all() else min(k + 1, len(self))

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of each query, without the query's own passage, as ``CollectionRetriever.search``."""
        own = self.own(query_rows)
        if (own < 0).all():
            return self.retriever.search(query_rows, k, progress)
        scores, rows = self.retriever.search(query_rows, self.depth(own, k), progress)
        return ordered(scores, np.where(rows == own[:, None], -1, rows), k)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) by the wrapped retriever, including a query's own passage."""
        return self.retriever.score(query_rows, passage_rows)


def own_passages_left_out(
    collection: Collection, query_rows: NDArray[np.integer], label: str, by_id: bool = False
) -> dict[str, int]:
    """Print how many queries have an own passage, which is left out, and return the count for a manifest.

    If no query has an own passage, nothing is printed and {} is returned.
    """
    number = int((own_passages(collection, query_rows, by_id) >= 0).sum())
    if not number:
        return {}
    are = f"of {len(query_rows):,} queries {'is a passage' if number == 1 else 'are passages'}"
    same = "id" if by_id else "id and text"
    print(f"[{label}] {number:,} {are}, too (same {same}); each is left out of its own ranking", flush=True)
    return {"own_passages_left_out": number}
