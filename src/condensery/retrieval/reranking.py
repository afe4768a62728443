"""Score candidates with cross-encoders, and rank the candidates by these scores.

Queries are scored in shards, which several processes may share (``condensery.sharing``). Inside a shard the pairs are
sorted by length and cut into chunks of a token budget.

Shapes: n queries, k candidates of each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condensery.errors import UserError, shown
from condensery.retrieval.collection_retriever import CollectionRetriever
from condensery.retrieval.finite import check_finite, check_scores
from condensery.retrieval.ranking import Ranking, ordered, scores_in
from condensery.retrieval.shards import compute_in_shards
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import atomic, load_array, read_json, write_json
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection
from condensery.tokens.batches import Chunk
from condensery.tokens.pairs import PairReader

Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
# query rows (b,), candidates (b, k) -> scores (b, k); it advances the task by pairs
Score = Callable[[Rows, Rows, ProgressTask], Scores]


@dataclass(frozen=True)
class PairScorer:
    """A cross-encoder at work.

    Attributes:
        reader: makes the rows of pairs.
        score: gives the logits (b,) of a chunk of b pairs.
    """

    reader: PairReader
    score: Callable[[Chunk], Tensor]


def search_candidates(
    retriever: CollectionRetriever,
    query_rows: Rows,
    depth: int,
    path: Path,
    label: str,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Rows:
    """The passages (n, k) that a retriever ranks highest, k <= ``depth``, kept in the file ``path``.

    A file that exists is read, and nothing is searched.
    """
    label, k = f"{label}: search", min(depth, len(retriever))

    def searched(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        scores, passages = retriever.search(query_rows[part], k, task)
        check_scores(scores, passages, f"{label}: a score of query row", query_rows[part])
        return {path.stem: passages.astype(np.int32)}

    compute_in_shards(searched, len(query_rows), path, label, group=group)
    return load_array(path, mapped=True)


def score_in_shards(
    score: Score,
    query_rows: Rows,
    candidates: Rows,
    path: Path,
    *,
    shard_size: int,
    label: str,
    group: ProcessGroup = SINGLE_PROCESS,
    each: int = 1,
) -> Scores:
    """The scores (n, k) of candidates (n, k), memory-mapped from the file ``path``.

    Complete shards of an interrupted call are kept. Of several processes only the first gets the scores; the others leave
    the stage here.

    Args:
        score: gives the scores of some queries.
        query_rows: (n,).
        candidates: (n, k) passages, padded with -1.
        path: file that keeps the scores.
        shard_size: queries of a shard.
        label: shown with the progress.
        group: the processes that share the shards.
        each: how often ``score`` reads a pair, for the progress.
    """

    def scored(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        return {path.stem: score(query_rows[part], np.asarray(candidates[part]), task)}

    def pairs(part: slice) -> int:
        return each * int((candidates[part] >= 0).sum())

    compute_in_shards(scored, len(query_rows), path, label, size=shard_size, group=group, unit="pairs", amount=pairs)
    group.leave_unless_rank_zero()
    return load_array(path, mapped=True)


def logits(
    scorers: Sequence[PairScorer], budget: int, label: str
) -> Callable[[Rows, Rows, ProgressTask | None], Scores]:
    """The ``Score`` that gives the mean logits (n, k) of cross-encoders, -inf where there is no candidate.

    Scoring raises ``UserError`` where a score is not finite.

    Args:
        scorers: the cross-encoders.
        budget: padded tokens of a chunk.
        label: beginning of the error.
    """

    def score(query_rows: Rows, candidates: Rows, task: ProgressTask | None) -> Scores:
        filled = candidates >= 0
        queries, passages = np.repeat(query_rows, filled.sum(axis=1)), candidates[filled]
        total = np.zeros(len(passages), np.float32)
        for scorer in scorers:
            for chunk in scorer.reader.chunks(queries, passages, budget) if len(passages) else ():
                total[chunk.rows.numpy()] += scorer.score(chunk).detach().float().cpu().numpy()
                if task:
                    task.advance(len(chunk))
        remedy = "the cross-encoder diverged in training, or needs precision fp32"
        pairs = np.stack([queries, passages], axis=1)
        check_finite(total, f"{label}: the score of the rows of query and passage", pairs, remedy)
        scores = np.full(candidates.shape, -np.inf, np.float32)
        scores[filled] = total / np.float32(len(scorers))
        return scores

    return score


class RerankedIndex:
    """The candidates of some queries in the order of their scores: a retriever that knows only these queries."""

    def __init__(self, folder: Path, collection: Collection) -> None:
        self.folder, self.collection = folder, collection
        self.about: dict[str, Any] = read_json(folder / "index.json")
        self.query_rows = load_array(folder / "queries.npy")
        self.candidates = load_array(folder / "candidates.npy", mapped=True)
        self.scores = load_array(folder / "scores.npy", mapped=True)

    def __len__(self) -> int:
        return int(self.about["passages"])

    def search(self, query_rows: Rows, k: int, progress: ProgressTask | None = None) -> Ranking:
        """The k best candidates of queries, as ``CollectionRetriever.search``; other passages are not found.

        Raises ``UserError`` for a query that was not reranked.
        """
        place = self._places(query_rows)
        if progress:
            progress.advance(len(place))
        return ordered(self.scores[place], self.candidates[place], k)

    def score(self, query_rows: Rows, passage_rows: Rows) -> Scores:
        """The scores (n, k) that the reranker gave passages (n, k); NaN for passages that it did not read.

        Raises ``UserError`` for a query that was not reranked.
        """
        place = self._places(query_rows)
        return scores_in((self.scores[place], self.candidates[place]), passage_rows, otherwise=np.nan)

    def _places(self, query_rows: Rows) -> NDArray[np.integer]:
        """The places of queries (n,) among the reranked queries."""
        place = np.minimum(np.searchsorted(self.query_rows, query_rows), len(self.query_rows) - 1)
        strange = np.flatnonzero(self.query_rows[place] != query_rows)
        if len(strange):
            name = self.collection.queries.column("id")[int(query_rows[strange[0]])]
            raise UserError(
                f"{self.folder}: query {shown(name)!r} was not reranked (those of the split {self.about['split']!r} were);"
                " set the key split of the stage that reranks"
            )
        return place


def write_reranked(folder: Path, collection: Collection, query_rows: Rows, depth: int, split: str) -> dict[str, Any]:
    """Write the files that make candidates.npy and scores.npy in ``folder`` an index.

    Returns the content of ``index.json``.
    """
    with atomic(folder / "queries.npy") as temporary, open(temporary, "wb") as stream:
        np.save(stream, query_rows)
    about = {"method": "rerank", "passages": len(collection.passages), "split": split}
    about |= {"queries": len(query_rows), "depth": depth}
    write_json(folder / "index.json", about)
    return about
