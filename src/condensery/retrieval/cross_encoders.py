"""Score candidate passages with cross-encoders.

Queries are scored in shards, which several processes may share (``condensery.sharing``). Within a shard, the (query,
passage) pairs are sorted by length and split into batches, called chunks, of a fixed token budget.

Shapes: n queries, k candidates per query.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condensery.retrieval.finite import check_finite, check_scores
from condensery.retrieval.indexes.divided import divide
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.shards import compute_in_shards
from condensery.sharing import ProcessGroup
from condensery.system.files import load_array
from condensery.system.progress import ProgressTask
from condensery.tokens.batches import Chunk
from condensery.tokens.pairs import PairReader

Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
# query rows (b,), candidates (b, k) -> scores (b, k); the function advances the progress bar by pairs
Score = Callable[[Rows, Rows, ProgressTask], Scores]


@dataclass(frozen=True)
class PairScorer:
    """A cross-encoder together with the reader that builds its tokenised input.

    Attributes:
        reader: builds the encoder inputs of (query, passage) pairs.
        score: maps a chunk of b pairs to their logits (b,).
    """

    reader: PairReader
    score: Callable[[Chunk], Tensor]


def search_candidates(
    retriever: CollectionRetriever, query_rows: Rows, depth: int, path: Path, label: str, group: ProcessGroup
) -> Rows:
    """Search for the ``k`` best passages of each query, and return their row numbers (n, k), best first.

    k is ``depth`` or the number of passages, whichever is smaller. The row numbers are stored in the file ``path``. If this
    file exists, it is read and nothing is searched.
    """
    label, k = f"{label}: search", min(depth, len(retriever))

    def searched(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        scores, passages = retriever.search(query_rows[part], k, task)
        check_scores(scores, passages, f"{label}: a score of query row", query_rows[part])
        return {path.stem: passages.astype(np.int32)}

    divide(retriever, query_rows, k, path, label, group)
    compute_in_shards(searched, len(query_rows), path, label, group=group)
    shutil.rmtree(path.with_suffix(".found"), ignore_errors=True)
    return load_array(path, mapped=True)


def score_in_shards(
    score: Score, query_rows: Rows, candidates: Rows, path: Path, size: int, label: str, group: ProcessGroup, each: int
) -> Scores:
    """Score the candidates of all queries, and return the scores (n, k), memory-mapped from the file ``path``.

    Complete shards of an interrupted call are reused. With several processes, only the first process returns the scores. In
    the other processes, the function ends the stage (``NotRankZero``).

    Args:
        score: function that scores the candidates of a slice of the queries.
        query_rows: int (n,), row numbers of the queries.
        candidates: int (n, k), row numbers of passages, padded with -1.
        path: file in which the scores are stored.
        size: queries per shard.
        label: label of the progress bar.
        group: the processes that share the shards.
        each: number of times that ``score`` processes each pair, for the total of the progress bar.
    """

    def scored(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        return {path.stem: score(query_rows[part], np.asarray(candidates[part]), task)}

    def pairs(part: slice) -> int:
        return each * int((candidates[part] >= 0).sum())

    compute_in_shards(scored, len(query_rows), path, label, size=size, group=group, unit="pairs", amount=pairs)
    group.leave_unless_rank_zero()
    return load_array(path, mapped=True)


def logits(scorers: Sequence[PairScorer], budget: int, label: str) -> Score:
    """Return a ``Score`` function that computes the mean logit of several cross-encoders for each pair.

    The returned function gives scores (n, k), with -inf for padding. It raises ``UserError`` if a score is not finite.

    Args:
        scorers: the cross-encoders.
        budget: maximum number of tokens per chunk, padding included.
        label: beginning of error messages.
    """

    def score(query_rows: Rows, candidates: Rows, task: ProgressTask) -> Scores:
        filled = candidates >= 0
        queries, passages = np.repeat(query_rows, filled.sum(axis=1)), candidates[filled]
        total = np.zeros(len(passages), np.float32)
        for scorer in scorers:
            for chunk in scorer.reader.chunks(queries, passages, budget) if len(passages) else ():
                total[chunk.rows.numpy()] += scorer.score(chunk).detach().float().cpu().numpy()
                task.advance(len(chunk))
        remedy = "the cross-encoder diverged in training (lower learning_rate), or needs precision fp32"
        pairs = np.stack([queries, passages], axis=1)
        check_finite(total, f"{label}: the score of the pair of query row and passage row", pairs, remedy)
        scores = np.full(candidates.shape, -np.inf, np.float32)
        scores[filled] = total / np.float32(len(scorers))
        return scores

    return score
