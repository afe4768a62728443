"""Positive-aware mining: leave out candidates that score nearly as high as the positive, because they may be relevant.

The rules are those of NV-Retriever (de Souza P. Moreira et al. 2024, "Improving text embedding models with effective
hard-negative mining", §3: TopK-PercPos, TopK-MarginPos and TopK-Abs).

Shapes: n queries, k candidates per query, m candidates left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.errors import number_of
from condensery.retrieval.no_negatives import Ids, packed
from condensery.retrieval.passage_lists import in_rows
from condensery.system.files import load_array

Scores = NDArray[np.float32]
LEFT_OUT, LEFT_OUT_SCORES = "left_out", "left_out_scores"  # arrays (m,): excluded (query << 32) + passage; scores
# arrays (n,): the positive that set each query's limits, and its score; -1 and NaN if no positive has a score
POSITIVES, POSITIVE_SCORES = "positive_passages", "positive_scores"
ARRAYS = (LEFT_OUT, LEFT_OUT_SCORES, POSITIVES, POSITIVE_SCORES)


@dataclass(frozen=True)
class Below:
    """Upper limits of a candidate's score. A candidate is kept if its score is below all limits that are set.

    If a query has several positives, the positive with the lowest score determines the limits. The reason is that all
    positives of a query share its negatives, so a negative must be below the limits of every positive. In NV-Retriever, a
    training example is a query with one positive.

    Attributes:
        share: the limit is ``share`` times the positive's score s, 0 < share <= 1. If s is below 0, the limit is
            s - (1 - share) |s|, so that it never exceeds s.
        margin: the limit is the positive's score minus ``margin``, ``margin`` >= 0.
        score: the limit is ``score``, whatever the positive's score.
    """

    share: float | None = None
    margin: float | None = None
    score: float | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.share, self.margin, self.score))

    def __str__(self) -> str:
        """Describe the limits in words that can follow "a score", such as "below 95 % of the positive's"."""
        words = [
            "" if self.share is None else f"{100 * self.share:g} % of the positive's",
            "" if self.margin is None else f"the positive's less {self.margin:g}",
            "" if self.score is None else f"{self.score:g}",
        ]
        return f"below {' and '.join(filter(None, words))}"

    def limits(self, positives: Scores) -> Scores:
        """Compute the limits (n,) below which candidates are kept, from the scores of the positives (n,).

        If a positive has no score (NaN), the limit is -inf, because no candidate is known to score below it.
        """
        wide = positives.astype(np.float64)
        limits = np.full(wide.shape, np.inf if self.score is None else self.score)
        if self.share is not None:
            limits = np.minimum(limits, np.where(wide < 0, 2 - self.share, self.share) * wide)
        if self.margin is not None:
            limits = np.minimum(limits, wide - self.margin)
        return np.where(np.isnan(limits), -np.inf, limits).astype(np.float32)


class Scorer(Protocol):
    """Interface of a model that scores passages: a retriever, or one or several cross-encoders."""

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> Scores:
        """Return the scores (n, k) of passages (n, k) for queries (n,) of the collection; NaN if there is no score."""


@dataclass(frozen=True)
class Judge:
    """Decides by score which candidates of a query are kept as negatives.

    Attributes:
        scorer: scores the candidates and the positives.
        below: upper limits of a candidate's score.
        positives: query row -> its relevant passages, for every query whose negatives are mined.
        exempt: int64 (e,), confirmed negatives as (query << 32) + passage. They are kept whatever their score.
    """

    scorer: Scorer
    below: Below
    positives: Mapping[int, NDArray[np.integer]]
    exempt: Ids

    def keeps(self, query_rows: Ids, candidates: Ids, limits: Scores) -> tuple[NDArray[np.bool_], Scores]:
        """Select the candidates whose scores are below the limits of their queries.

        Args:
            query_rows: int64 (n,), row numbers of the queries.
            candidates: int64 (n, k), row numbers of the passages; -1 is padding.
            limits: float32 (n,), upper limit of the scores for each query.

        Returns:
            A mask (n, k), True for a kept candidate, and the scores of all candidates (n, k).
        """
        scores = self.scorer.score(query_rows, candidates)
        exempt = np.isin(packed(query_rows[:, None], candidates), self.exempt)
        return (candidates >= 0) & ((scores < limits[:, None]) | exempt), scores


def lowest(scorer: Scorer, query_rows: Ids, positives: list[NDArray[np.integer]]) -> tuple[Scores, NDArray[np.int32]]:
    """Return the lowest score (n,) among each query's positives, and the positive (n,) with this score.

    A query without a scored positive gets NaN and -1.

    Args:
        scorer: scores the positives.
        query_rows: int64 (n,), row numbers of the queries.
        positives: for each of the n queries, the row numbers of its relevant passages.
    """
    rows = in_rows([*map(len, positives)], np.concatenate(positives).astype(np.int64), -1)
    scores = scorer.score(query_rows, rows)
    unknown = np.isnan(scores)
    place = np.arange(len(rows)), np.where(unknown, np.float32(np.inf), scores).argmin(axis=1)
    none = unknown[place]
    return np.where(none, np.float32(np.nan), scores[place]), np.where(none, -1, rows[place]).astype(np.int32)


def counted(folder: Path, below: Below, without: int, label: str) -> dict[str, Any]:
    """Print how many candidates were excluded for their scores in mining, and return the counts for a manifest.

    There is a warning if a query has no positive with a score. With ``below.share``, there is another warning if positives
    have negative scores, because a share of a negative score means little. The run prints the warnings of an artifact.

    Args:
        folder: artifact of the mined negatives.
        below: the upper limits by which candidates were excluded.
        without: number of queries that have no negative left.
        label: beginning of the printed lines.
    """
    number, scores = len(load_array(folder / f"{LEFT_OUT}.npy")), load_array(folder / f"{POSITIVE_SCORES}.npy")
    are = "it is" if number == 1 else "they are"
    left_out = f"{number_of(number, 'candidates do')} not score {below}: {are} left out"
    bare = number_of(without, f"of {len(scores):,} queries have")
    print(f"[{label}] {left_out}; {bare} no negative left, and training draws random ones there", flush=True)
    counts: dict[str, Any] = {"left_out_by_score": number, "queries_without": without}
    unknown, below_zero = int(np.isnan(scores).sum()), int((scores < 0).sum())
    warnings = []
    if unknown:
        warnings.append(
            f"{unknown:,} of {len(scores):,} queries have no positive with a score: none of their candidates is kept"
        )
    if below_zero and below.share is not None:
        warnings.append(
            f"{below_zero:,} of {len(scores):,} positives score below 0, for which a share of the score says little;"
            " set stage.mine.below_margin instead"
        )
    return {**counts, **({"warnings": warnings} if warnings else {})}
