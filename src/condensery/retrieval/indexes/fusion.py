"""Fuse the rankings of several retrievers into one ranking, by their scores or by their ranks.

Each retriever assigns a value to the passages that it returns, which are its candidates. The fused score of a passage is the
weighted sum of its values. A retriever that does not return a passage adds 0. There are two methods:

- weighted: the value is the min-max normalised score among the query's candidates, s' = (s - min) / (max - min) in [0, 1]
  (Lee 1997, "Analyses of Multiple Evidence Combination"). A passage that was not returned counts like the last candidate.
- reciprocal_rank: the value is 1 / (constant + rank), rank from 1 (Cormack et al. 2009, "Reciprocal Rank Fusion outperforms
  Condorcet and individual Rank Learning Methods").

The fused scores depend only on the rankings, both for queries of the collection and for other queries. Scores of passages
that a retriever did not return are not computed.

Shapes: n queries, k results, m retrievers, c candidates per query (of all retrievers), g grid points.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.finite import check_scores
from condensery.retrieval.indexes.interface import CollectionRetriever, without_terms
from condensery.retrieval.ranking import Ranking, ordered, scores_in
from condensery.system.files import RECOMPUTE, inside, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask

WEIGHTED, RECIPROCAL_RANK = "weighted", "reciprocal_rank"
QUERIES = 4_096  # queries per search; the results of one retriever take 50 MB at a depth of 1,000
VALUES = 2_000_000  # maximum number of values per block of fused queries; they take 16 MB, and there are a few copies

Rows = NDArray[np.integer]
Weights = NDArray[np.float64]
# query rows (b,), ranked passage rows (b, k) padded with -1 -> a metric of each query (b,)
Measure = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def min_max(ranking: Ranking) -> NDArray[np.float64]:
    """Scale the scores (n, k) of each query to [0, 1]. If all scores are equal, they become 1. Padding becomes 0."""
    scores, retrieved = ranking[0].astype(np.float64), ranking[1] >= 0
    highest = np.where(retrieved, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    lowest = np.where(retrieved, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    flat = ~(highest > lowest)
    scaled = (np.where(retrieved, scores, 0.0) - np.where(flat, 0.0, lowest)) / np.where(flat, 1.0, highest - lowest)
    return np.where(retrieved, np.where(flat, 1.0, scaled), 0.0)


def reciprocal_ranks(ranking: Ranking, constant: float) -> NDArray[np.float64]:
    """Return 1 / (constant + rank) for rankings (n, k), with ranks from 1; 0 for padding."""
    retrieved = ranking[1] >= 0
    return np.where(retrieved, 1.0 / (constant + np.arange(1, retrieved.shape[1] + 1)), 0.0)


@dataclass(frozen=True)
class Candidates:
    """The union of the passages that several retrievers return for each of n queries.

    Attributes:
        rows: int64 (n, c), row numbers of the passages, ascending, without repeats, padded with -1.
        values: float64 (m, n, c) >= 0, value of each passage by each retriever; 0 if the retriever did not return it.
        retrieved: bool (m, n, c), True if the retriever returned the passage.
    """

    rows: NDArray[np.int64]
    values: NDArray[np.float64]
    retrieved: NDArray[np.bool_]


def join(rankings: Sequence[Ranking], values: Sequence[NDArray[np.float64]]) -> Candidates:
    """Merge m rankings of n queries into candidates. ``values``: for each ranking, the values of its passages."""
    rows = np.concatenate([passages for _, passages in rankings], axis=1)  # (n, c)
    retriever = np.repeat(np.arange(len(rankings)), [passages.shape[1] for _, passages in rankings])
    order = np.argsort(rows, axis=1, kind="stable")  # (n, c)
    rows = np.take_along_axis(rows, order, axis=1)
    flat = np.take_along_axis(np.concatenate(values, axis=1), order, axis=1)  # (n, c)
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    place = np.cumsum(first, axis=1) - 1  # column of a passage after repeats are removed
    query, at = np.nonzero(rows >= 0)
    where = retriever[order[query, at]], query, place[query, at]
    joined = np.full(rows.shape, -1, np.int64)
    joined[where[1:]] = rows[query, at]
    shape = (len(rankings), *rows.shape)
    given, retrieved = np.zeros(shape), np.zeros(shape, bool)
    given[where], retrieved[where] = flat[query, at], True
    return Candidates(joined, given, retrieved)


def weighted_sum(candidates: Candidates, weights: Weights, k: int) -> Ranking:
    """Return the k candidates with the highest weighted sums of ``values``, in the format of ``CollectionRetriever.search``.

    A retriever with weight 0 adds no candidates.
    """
    retrieved = candidates.retrieved[weights > 0].any(axis=0)
    return ordered(weighted(candidates, weights), np.where(retrieved, candidates.rows, -1), k)


def weighted(candidates: Candidates, weights: Weights) -> NDArray[np.float32]:
    """Return the weighted sum of each candidate's values over the retrievers, (n, c)."""
    # The summands are integer multiples of a power of two. Their sum is exact, so the order of retrievers changes no bit.
    unit = 2.0 ** (math.frexp(math.fsum(weights))[1] - 50)
    sums: NDArray[np.float64] = np.rint(weights[:, None, None] * (candidates.values / unit)).sum(axis=0) * unit
    return sums.astype(np.float32)


class FusedIndex:
    """Retriever that fuses the rankings of several retrievers, its members.

    Args:
        members: retrievers of the same passages; a member may be a ``FusedIndex`` itself.
        weights: (m,), >= 0 and not all 0. The ranking depends only on their ratios.
        depth: maximum number of candidates per query from each member.
        method: fusion method, ``weighted`` or ``reciprocal_rank``.
        rank_constant: the constant of ``reciprocal_rank``.
    """

    def __init__(
        self,
        members: Sequence[CollectionRetriever],
        weights: Sequence[float],
        depth: int,
        method: str = WEIGHTED,
        rank_constant: float = 60.0,
    ) -> None:
        self.members, self.weights = list(members), np.asarray(weights, np.float64)
        power = int(np.frexp(self.weights.max())[1])
        if abs(power) > 100:  # sums of such weights would leave the range of 32-bit scores
            self.weights = np.ldexp(self.weights, -power)
        self.depth, self.method, self.rank_constant = depth, method, rank_constant

    def __len__(self) -> int:
        return len(self.members[0])

    @property
    def recall(self) -> float | None:
        """Lowest recall of the approximate members; None without such members, and before the first search."""
        return min(self._of_members("recall"), default=None)

    @property
    def recall_of_top(self) -> float | None:
        """Lowest ``recall_of_top`` of the approximate members; None in the same cases as ``recall``."""
        return min(self._of_members("recall_of_top"), default=None)

    @property
    def short(self) -> int:
        """Number of queries for which a member returned fewer passages than its depth: the maximum over the members."""
        return int(max(self._of_members("short"), default=0))

    def _of_members(self, name: str) -> list[float]:
        values = (getattr(member, name, None) for member in self.members)
        return [value for value in values if value is not None]

    def without_terms(self, query_rows: Rows) -> int:
        """Return the number of queries that share no term with any passage: the maximum over the members."""
        return max(without_terms(member, query_rows) for member in self.members)

    def search(self, query_rows: Rows, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``.

        Every member is searched at depth ``depth``, whatever k is, so that the order does not depend on k.
        """
        scores, rows = _nothing(len(query_rows), k)
        for part in _blocks(len(query_rows), QUERIES):
            scores[part], rows[part] = self.combine(self.rankings(query_rows[part]), k)
            progress.advance(len(query_rows[part]))
        return scores, rows

    def score(self, query_rows: Rows, passage_rows: Rows) -> NDArray[np.float32]:
        """Return the fused scores (n, k) of passages (n, k), as in ``search``.

        The score is 0 for a passage that no member returns, and NaN for padding (row -1).
        """
        scores = np.empty(passage_rows.shape, np.float32)
        for block in _blocks(len(query_rows), QUERIES):
            for part, found in self.candidates(self.rankings(query_rows[block])):
                there = slice(block.start + part.start, block.start + part.stop)
                ranking = weighted(found, self.weights), found.rows
                scores[there] = scores_in(ranking, passage_rows[there], otherwise=0.0)
        return scores

    def rankings(self, query_rows: Rows) -> list[Ranking]:
        """Return the ranking of each member for queries (n,): ``depth`` passages, or all passages if there are fewer."""
        return [member.search(query_rows, min(self.depth, len(self))) for member in self.members]

    def combine(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        """Fuse the rankings of n queries, one of each member, and return the k best passages.

        The rankings are in the order of the members. Each ranking has the format of ``CollectionRetriever.search``. Its first
        ``depth`` passages are used.
        """
        scores, rows = _nothing(len(rankings[0][1]), k)
        for part, candidates in self.candidates(rankings):
            scores[part], rows[part] = weighted_sum(candidates, self.weights, k)
        return scores, rows

    def candidates(self, rankings: Sequence[Ranking]) -> Iterator[tuple[slice, Candidates]]:
        """Yield the candidates of all queries in blocks, each with its slice of the queries.

        ``VALUES`` limits the number of queries per block.
        """
        width = sum(min(self.depth, rows.shape[1]) for _, rows in rankings)
        for part in _blocks(len(rankings[0][1]), max(1, VALUES // max(1, len(rankings) * width))):
            own = [(scores[part, : self.depth], rows[part, : self.depth]) for scores, rows in rankings]
            for number, ranking in enumerate(own):
                check_scores(*ranking, f"fusion: a score by retriever {number} of query")
            yield part, join(own, [self._values(ranking) for ranking in own])

    def _values(self, ranking: Ranking) -> NDArray[np.float64]:
        return min_max(ranking) if self.method == WEIGHTED else reciprocal_ranks(ranking, self.rank_constant)


def _nothing(queries: int, k: int) -> Ranking:
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64)


def _blocks(number: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, number)) for first in range(0, number, size))


def weight_grid(members: int, steps: int) -> Weights:
    """Return all weight vectors (g, m) of multiples of 1/steps that sum to 1, in ascending order of the first weight."""
    places = range(steps + members - 1)  # stars and bars: steps in a row, with bars between the members' shares
    bars = np.array([*combinations(places, members - 1)], np.int64)
    return (np.diff(bars, axis=1, prepend=-1, append=len(places)) - 1) / steps


def measure_grid(
    index: FusedIndex, query_rows: NDArray[np.int64], grid: Weights, measure: Measure, k: int, task: ProgressTask
) -> NDArray[np.float64]:
    """Measure the mean of a metric over the queries for every weight vector of a grid, and return the means (g,).

    Every member is searched only once.

    Args:
        index: the fused index, whose weights are not used.
        query_rows: int64 (n,), row numbers of the queries.
        grid: (g, m), the weight vectors.
        measure: computes the metric of each query.
        k: number of passages that the metric uses.
        task: progress bar, which advances by queries.
    """
    values = np.zeros((len(grid), len(query_rows)))
    for block in _blocks(len(query_rows), QUERIES):
        rows = query_rows[block]
        for part, candidates in index.candidates(index.rankings(rows)):
            there = slice(block.start + part.start, block.start + part.stop)
            for point, weights in enumerate(grid):
                values[point, there] = measure(rows[part], weighted_sum(candidates, weights, k)[1])
            task.advance(part.stop - part.start)
    return values.mean(axis=1)


def best_point(grid: Weights, values: NDArray[np.float64]) -> int:
    """Return the index of the grid point with the highest value.

    If several points have this value, the point nearest to equal weights is chosen. If several points are equally near, the
    first of them is chosen.
    """
    return int(np.lexsort(((grid**2).sum(axis=1), -values))[0])


def write_fused(folder: Path, index: FusedIndex, members: Sequence[str], chosen: dict[str, Any] | None) -> None:
    """Write ``index.json``, which ``open_fused`` reads.

    ``members``: ``kind/id`` of the artifact of each member. ``chosen``: how the weights were chosen, for human readers.
    """
    about = {"method": "fused", "passages": len(index), "members": list(members), "fusion": index.method}
    about |= {"weights": index.weights.tolist(), "depth": index.depth, "rank_constant": index.rank_constant}
    write_json(folder / "index.json", {**about, "chosen": chosen})


def open_fused(folder: Path, open_member: Callable[[Path], CollectionRetriever]) -> FusedIndex:
    """Open the index that ``write_fused`` wrote into an artifact. Its members are other artifacts of the same store."""
    path = folder / "index.json"
    about, store = read_json(path), folder.resolve().parents[1]
    if about.get("fusion") not in (WEIGHTED, RECIPROCAL_RANK):
        known = f"{WEIGHTED} or {RECIPROCAL_RANK}"
        raise UserError(f"{path}: unknown fusion {shown(str(about.get('fusion')))!r}, expected {known}; {RECOMPUTE}")
    members = [open_member(inside(store, member, path)) for member in about["members"]]
    return FusedIndex(members, about["weights"], about["depth"], about["fusion"], about["rank_constant"])
