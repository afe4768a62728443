"""Use a searcher of your own program, such as BM25 or a retriever, on a collection: to rank, and to mine negatives."""

from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.collection_retriever import unmatched_queries
from condensery.retrieval.mining import mine
from condensery.retrieval.negatives import Negatives, open_negatives
from condensery.retrieval.positive_aware import Below
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.relabelled import NOTHING, Relabelled
from condensery.retrieval.searcher import Searcher
from condensery.system.cache import cached
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection

RULE = "without texts that are known"  # how negatives are chosen; part of the cache's key, so another rule mines again


class SearcherIndex:
    """A searcher as a ``CollectionRetriever`` of one collection."""

    def __init__(self, searcher: Searcher, collection: Collection) -> None:
        columns = (collection.passages.column(name) for name in ("id", "title", "text"))
        passages = {name: {"title": title, "text": text} for name, title, text in zip(*columns, strict=True)}
        self.searcher, self.queries = copy(searcher).index(passages), collection.queries.column("text")

    def __len__(self) -> int:
        return len(self.searcher)

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask | None = None) -> Ranking:
        """The k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        return self.searcher.rank(self.queries.take(query_rows), k)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """The scores (n, k) that queries (n,) of the collection give passages (n, k), found by ``search`` or not."""
        return self.searcher.score(self.queries.take(query_rows), passage_rows)

    def without_terms(self, query_rows: NDArray[np.integer]) -> int:
        """The number of queries (n,) that share no term with any passage; 0 for a searcher without BM25."""
        count = getattr(self.searcher, "without_terms", None)
        return count(self.queries.take(query_rows)) if count else 0

    def warn(self, query_rows: NDArray[np.integer]) -> None:
        """Print a warning where BM25 finds nothing for most of the queries (n,)."""
        for text in unmatched_queries(self, query_rows).get("warnings", []):
            print(f"warning: {text}", flush=True)


def mined(
    searcher: Searcher,
    collection: Collection,
    split: str,
    depth: int,
    below: Below = Below(),  # noqa: B008
    relabelled: Relabelled = NOTHING,
) -> Negatives:
    """The ``depth`` best negatives of each judged query of ``split``, mined by ``mine`` and kept in the cache.

    A negative is not relevant to the query, does not have the text of a relevant passage or of the query, and does not
    score too high for ``below``. ``condensery.system.cache`` keeps the negatives.

    Raises:
        UserError: the collection has no such split, or no query has a positive.
    """
    content = f"{collection.content_hash} {split} {depth} {searcher.identity()} {RULE}"
    if below:
        content += f" {below}"
    if relabelled is not NOTHING:
        content += f" relabelled {relabelled.yes.tolist()} {relabelled.no.tolist()}"

    def make(target: Path) -> None:
        index = SearcherIndex(searcher, collection)
        index.warn(np.array(sorted(collection.qrels(split).positives()), np.int64))
        mine(index, collection, split, depth, target, below=below, relabelled=relabelled)

    folder = cached("negatives", content, make)
    return open_negatives(folder, collection)
