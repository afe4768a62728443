"""Score (query, passage) pairs for distillation with a teacher.

A teacher is a retriever, a cross-encoder, a function of texts, or several of these together.

Shapes: n queries, k passages per query.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.cross_encoders import Rows, Score, Scores
from condensery.retrieval.indexes.fusion import min_max
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives
from condensery.retrieval.pair_scores import Ids, PairScores, read_pair_scores, save_pair_scores
from condensery.retrieval.passage_lists import in_rows
from condensery.retrieval.ranking import without_repeats
from condensery.retrieval.searchers.base import Searcher, SearcherIndex
from condensery.retrieval.searchers.bm25 import BM25
from condensery.retrieval.searchers.reranked import by_texts, predicting
from condensery.system.cache import cached
from condensery.system.files import expanded
from condensery.system.progress import ProgressTask, progress
from condensery.text.collection import Collection

Scaling = Literal["none", "min_max"]


def pool_to_score(
    positives: Mapping[int, Rows], negatives: Sequence[Negatives], depth: int | None = None
) -> tuple[Ids, NDArray[np.int32]]:
    """Return the queries (n,) of ``positives``, ascending, and the passages (n, k) that training may draw for each query.

    For each query, the positives come first, then the ``depth`` best negatives of each source (None = all). Each passage
    occurs once per query. Padding at the end is -1.
    """
    queries = np.array(sorted(positives), np.int64)
    lists = [positives[query] for query in queries.tolist()]
    own = in_rows([*map(len, lists)], np.concatenate([np.empty(0, np.int32), *lists]).astype(np.int32), -1)
    pool = NegativePool(negatives, queries, [depth] * len(negatives))
    both = without_repeats(np.concatenate([own, pool[np.arange(len(queries))]], axis=1))
    order = np.argsort(both < 0, axis=1, kind="stable")
    width = int((both >= 0).sum(axis=1).max(initial=0))
    return queries, np.take_along_axis(both, order, axis=1)[:, :width]


def by_retriever(retriever: CollectionRetriever) -> Score:
    """Return a function that scores passages with a retriever."""

    def score(query_rows: Rows, candidates: Rows, task: ProgressTask) -> Scores:
        task.advance(int((candidates >= 0).sum()))
        return retriever.score(query_rows, candidates)

    return score


def together(scorers: Sequence[Score], weights: Sequence[float] | None = None, scaling: Scaling = "none") -> Score:
    """Return a function that scores pairs by the weighted mean of several scorers' scores.

    The mean is NaN for padding, and for a pair that one of the scorers does not score.

    Args:
        scorers: functions that score (query, passage) pairs.
        weights: one weight per scorer, not all 0; None = equal weights.
        scaling: "min_max" first scales each scorer's scores to [0, 1] per query, as fusion does; "none" does not scale.
    """
    shares = np.ones(len(scorers)) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()

    def score(query_rows: Rows, candidates: Rows, task: ProgressTask) -> Scores:
        total = np.zeros(candidates.shape)
        for one, share in zip(scorers, shares.tolist(), strict=True):
            given = np.where(candidates >= 0, one(query_rows, candidates, task), np.nan)
            total += share * (_scaled(given, candidates) if scaling == "min_max" else given)
        return total.astype(np.float32)

    return score


def _scaled(scores: NDArray[np.floating], candidates: Rows) -> NDArray[np.float64]:
    missing = np.isnan(scores)
    return np.where(missing, np.nan, min_max((np.where(missing, 0, scores), np.where(missing, -1, candidates))))


def taught_by(
    teacher: Any, collection: Collection, positives: Mapping[int, Rows], negatives: Sequence[Negatives]
) -> PairScores:
    """Return a teacher's scores of the passages that training may draw (``pool_to_score``).

    Args:
        teacher: existing scores or a model. Existing scores are ``PairScores``, a mapping query id -> passage id -> score,
            or the path of a file or folder. A model is ``BM25``, a ``Searcher``, an object with ``predict``, or a
            function. ``predict`` and the function map (query, passage) pairs of texts to scores. ``condensery.system.cache``
            stores the scores of a searcher for later calls.
        collection: the collection of the queries and passages.
        positives: query row -> its relevant passages.
        negatives: sources of negatives.

    Raises:
        UserError: the teacher is none of these, its scores are not finite, or ``read_pair_scores`` cannot read its file.
    """
    if isinstance(teacher, PairScores):
        return teacher
    if isinstance(teacher, Mapping):
        return PairScores.of(teacher, collection)
    if isinstance(teacher, str | Path):
        path = expanded(teacher)
        return PairScores.mapped(path) if path.is_dir() else read_pair_scores(path, collection)
    queries, candidates = pool_to_score(positives, negatives)
    teacher = teacher() if isinstance(teacher, type) and issubclass(teacher, BM25) else teacher
    if isinstance(teacher, Searcher):
        return _by_searcher(teacher, collection, queries, candidates)
    predict = predicting(teacher)
    if predict is None:
        raise UserError(
            "teacher: expected BM25 or a Retriever, an object with predict(pairs of texts), a function of these, a file,"
            f" scores by id, or PairScores, not a {type(teacher).__name__}"
        )
    texts = collection.queries.column("text").take, collection.passages.full_texts
    with progress("teacher", int((candidates >= 0).sum()), "pairs") as task:
        scores = together([by_texts(predict, *texts, "teacher")])(queries, candidates, task)
    return PairScores(queries, candidates, scores)


def _by_searcher(searcher: Searcher, collection: Collection, queries: Ids, candidates: NDArray[np.int32]) -> PairScores:
    asked = blake2b(queries.tobytes() + candidates.tobytes(), digest_size=16).hexdigest()

    def make(folder: Path) -> None:
        index = SearcherIndex.of(searcher, collection)
        with progress("teacher", int((candidates >= 0).sum()), "pairs") as task:
            scores = together([by_retriever(index)])(queries, candidates, task)
        save_pair_scores(folder, PairScores(queries, candidates, scores), collection)

    return PairScores.mapped(cached("pair_scores", f"{collection.content_hash} {searcher.identity()} {asked}", make))


def counts(pairs: PairScores, positives: Mapping[int, Rows]) -> dict[str, int]:
    """Return counts for a manifest.

    The counts are the numbers of queries, scored pairs, queries with fewer than two scored passages, and queries without a
    scored positive.
    """
    filled = pairs.filled
    with_positive = sum(
        bool(np.isin(positives[query], passages[own]).any())
        for query, passages, own in zip(pairs.query_rows.tolist(), pairs.passage_rows, filled, strict=True)
    )
    enough = filled.sum(axis=1) > 1
    return {
        "queries": len(positives),
        "pairs": int(filled.sum()),
        "queries_without_scores": len(positives) - int(enough.sum()),
        "queries_without_positive": len(positives) - with_positive,
    }
