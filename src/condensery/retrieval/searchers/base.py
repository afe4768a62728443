"""Define ``Searcher``, the base class of ``BM25``, ``Retriever``, ``Fused`` and ``Reranked``, which search from Python.

Shapes: n queries, m passages, k results.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, number_of, shown
from condensery.ranges import Count, check_values
from condensery.retrieval.finite import check_scores
from condensery.retrieval.indexes.interface import unmatched_queries, without_terms
from condensery.retrieval.ranking import Ranking
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection
from condensery.text.hashes import texts_hash
from condensery.text.ids import check_distinct
from condensery.text.lines import check_whole, has_items_in_order, whole_texts

Passages = Sequence[str] | Mapping[str, str | Mapping[str, str]]


@dataclass(frozen=True)
class Hit:
    """One result of a search.

    It holds the ``rank`` (from 1), the retriever's ``score``, and the passage's ``id``, ``title`` and ``text``.
    """

    rank: int
    score: float
    id: str
    title: str
    text: str


def hits_of(scores: NDArray[np.float32], rows: NDArray[np.int64], columns: Iterable[Sequence[str]]) -> list[Hit]:
    """Return the results of one query, best first, from scores (k,) and row numbers (k,) of its passages; -1 is padding.

    ``columns``: the ids, titles and texts of all passages.
    """
    ranked = enumerate(zip(scores.tolist(), rows.tolist(), strict=True), start=1)
    return [Hit(rank, score, *(column[row] for column in columns)) for rank, (score, row) in ranked if row >= 0]


class Searcher(ABC):
    """Base class of the searchers, which rank passages for queries. The method ``index`` receives the passages."""

    def __init__(self) -> None:
        self._ids, self._titles, self._texts = list[str](), list[str](), list[str]()

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self._ids)

    @property
    def content_hash(self) -> str:
        """The hash of the passages' ids, titles and texts in their order."""
        return hash_of_passages(self._ids, self._titles, self._texts)

    def index(self, passages: Passages) -> Self:
        """Index passages for later searches. Passages that were indexed before are replaced.

        Args:
            passages: a sequence of strings, which get the ids "0", "1", ...; or a mapping from id to passage. In a mapping,
                a passage is a string, or a mapping with ``text`` and optionally ``title`` (the BEIR layout).

        Returns:
            The searcher itself.

        Raises:
            UserError: there are no passages, or a passage is not a string.
        """
        listed = dict(enumerate(passages)) if has_items_in_order(passages) else {}
        named = passages if isinstance(passages, Mapping) else listed
        if not named:
            raise UserError("index: give a sequence of texts, or a mapping of ids to texts; it must not be empty")
        check_distinct(named, "index")
        titles, texts = [], []
        for name, passage in named.items():
            parts = passage if isinstance(passage, Mapping) else {"text": passage}
            if {"_id", "id"} & parts.keys() and not isinstance(passages, Mapping):
                raise UserError(f"index: item {name} has an id, but a list has none; give a mapping of ids to passages")
            title, text = parts.get("title"), parts.get("text")
            title = "" if title is None else title  # null counts as empty, as in a file
            if not isinstance(text, str) or not isinstance(title, str):
                raise UserError(f"index: passage {shown(str(name))!r} has no text; give a str or a mapping with `text`")
            for given, what in ((str(name), "id"), (title, "title"), (text, "text")):
                check_whole(given, what, f"index: passage {shown(str(name))!r}")
            titles.append(title)
            texts.append(text)
        self._prepare(titles, texts)
        self._ids, self._titles, self._texts = [str(name) for name in named], titles, texts
        return self

    @overload
    def search(self, query: str, k: int = 10) -> list[Hit]: ...  # type: ignore[overload-overlap]  # a str is a sequence, too

    @overload
    def search(self, query: Sequence[str], k: int = 10) -> list[list[Hit]]: ...

    def search(self, query: str | Sequence[str], k: Count = 10) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best passages, best first: a list for one query, a list of lists for a sequence of queries.

        Ties are broken by the order of the passages. BM25 returns only passages that share a term with the query.

        Raises:
            UserError: nothing is indexed.
        """
        check_values(Searcher.search, {"k": k})
        queries = [query] if isinstance(query, str) or not isinstance(query, Iterable) else query
        scores, rows = self.rank(queries, max(1, min(k, len(self))))  # there are no more results than passages
        columns = self._ids, self._titles, self._texts
        hits = [hits_of(*ranking, columns) for ranking in zip(scores, rows, strict=True)]
        return hits[0] if isinstance(query, str) else hits

    def rank(self, queries: Sequence[str], k: Count) -> Ranking:
        """Return the ``k`` best passages as two arrays: scores, float32 (n, k), and row numbers of passages, int64 (n, k).

        If fewer than ``k`` passages are found, the remaining scores are -inf and the remaining row numbers -1.

        Raises:
            UserError: nothing is indexed, a query is not a string, or ``k`` is not a whole number >= 1.
        """
        check_values(Searcher.rank, {"k": k})
        queries = self._check(queries)
        scores, rows = self._rank(queries, int(k))
        check_scores(scores, rows, "search: a score of query", queries)
        return scores, rows

    def score(self, queries: Sequence[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Score chosen passages for each query, whether or not a search would return them.

        Args:
            queries: n strings.
            passage_rows: int (n, k), row numbers of the passages to score for each query; -1 = none.

        Returns:
            scores, float32 (n, k), as ``CollectionRetriever.score`` defines them; NaN for padding (row -1).

        Raises:
            UserError: nothing is indexed, ``passage_rows`` are not row numbers of passages, or a score is not finite.
        """
        queries, rows = self._check(queries), np.asarray(passage_rows)
        if rows.ndim != 2 or len(rows) != len(queries) or rows.dtype.kind not in "iu" or (rows >= len(self)).any():
            raise UserError(
                f"score: passage_rows must be whole numbers below {len(self)}, in {len(queries)} rows (n, k)"
            )
        return self._score(queries, rows.astype(np.int64, copy=False))

    def _check(self, queries: Sequence[str]) -> list[str]:
        """Return the queries as a list. Raise ``UserError`` if nothing is indexed, or if a query is not a string."""
        if not self._ids:
            raise UserError("search: nothing is indexed yet; call index(passages) first")
        return whole_texts(queries, "search: query")

    def identity(self) -> str:
        """Return a string that identifies everything on which the results depend, except the passages.

        The string is part of the cache key of mined negatives.
        """
        raise NotImplementedError

    @abstractmethod
    def _prepare(self, titles: list[str], texts: list[str]) -> None: ...

    @abstractmethod
    def _rank(self, queries: list[str], k: int) -> Ranking: ...

    @abstractmethod
    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]: ...


class SearcherIndex:
    """Wraps a searcher as a ``CollectionRetriever``, which takes row numbers of the strings ``queries``."""

    def __init__(self, searcher: Searcher, queries: Sequence[str]) -> None:
        self.searcher, self.queries = searcher, queries

    @classmethod
    def of(cls, searcher: Searcher | type[Searcher], collection: Collection) -> Self:
        """Index a collection's passages with a copy of the searcher or, for a class, with a new instance; wrap the result."""
        columns = (collection.passages.column(name) for name in ("id", "title", "text"))
        passages = {name: {"title": title, "text": text} for name, title, text in zip(*columns, strict=True)}
        own = searcher() if isinstance(searcher, type) else copy(searcher)
        return cls(own.index(passages), collection.queries.column("text"))

    def __len__(self) -> int:
        return len(self.searcher)

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries (n,), as ``CollectionRetriever.search``."""
        return self.searcher.rank(self._texts(query_rows), k)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) for queries (n,), whether or not ``search`` would return them."""
        return self.searcher.score(self._texts(query_rows), passage_rows)

    def without_terms(self, query_rows: NDArray[np.integer]) -> int:
        """Count the queries (n,) that share no term with any passage. The count is 0 for a searcher without BM25."""
        return without_terms(self.searcher, self._texts(query_rows))

    def warn(self, query_rows: NDArray[np.integer]) -> None:
        """Print a warning if BM25 finds nothing for most of the queries (n,)."""
        for text in unmatched_queries(self, query_rows).get("warnings", []):
            print(f"warning: {text}", flush=True)

    def _texts(self, query_rows: NDArray[np.integer]) -> list[str]:
        return [self.queries[row] for row in query_rows.tolist()]


def titled(texts: Iterable[str], titles: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Return equally long lists of titles and texts. Without titles, each title is empty. Raises as ``whole_texts`` does."""
    found = whole_texts(texts, "encode: text")
    named = [""] * len(found) if titles is None else whole_texts(titles, "encode: title")
    if len(named) != len(found):
        raise UserError(f"encode: {number_of(len(named), 'titles')}, but {number_of(len(found), 'texts')}")
    return named, found


def numbered(titles: Sequence[str], texts: Sequence[str]) -> Passages:
    """Return passages as a mapping for a searcher inside another searcher. Their ids are their row numbers."""
    both = enumerate(zip(titles, texts, strict=True))
    return {str(number): {"title": title, "text": text} for number, (title, text) in both}


def hash_of_passages(ids: Iterable[str], titles: Iterable[str], texts: Iterable[str]) -> str:
    """Return the hash of an ordered list of passages: the ``content_hash`` of a searcher that has indexed them."""
    return texts_hash((*ids, *titles, *texts))
