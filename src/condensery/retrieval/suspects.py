"""Find suspected false negatives: unjudged passages that score nearly as high as a positive of the query, or higher.

Shapes: n queries, m pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import Negatives
from condensery.retrieval.no_negatives import ROW, packed
from condensery.retrieval.positive_aware import LEFT_OUT, LEFT_OUT_SCORES, POSITIVE_SCORES, POSITIVES, Scorer, lowest
from condensery.system.files import load_array

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]
BLOCK = 1024  # queries per scored block


@dataclass(frozen=True)
class Suspects:
    """Pairs of a query and a suspected false negative, the most suspicious first.

    Attributes:
        queries, passages: int64 (m,), row numbers of query and passage.
        positives: int64 (m,), row number of the query's positive with the lowest score; -1 if no positive has a score.
        scores, positive_scores: float32 (m,), scores of the passage and of this positive; NaN if there is none.
    """

    queries: Ids
    passages: Ids
    positives: Ids
    scores: Scores
    positive_scores: Scores

    @property
    def ratios(self) -> NDArray[np.float64]:
        """Ratio of the passage's score to the positive's score, float64 (m,); NaN unless the positive's score is above 0."""
        own = self.positive_scores.astype(np.float64)
        return np.divide(self.scores, own, out=np.full(len(own), np.nan), where=own > 0)


def were_left_out(folder: Path, depth: int) -> Suspects:
    """Return the ``depth`` best passages of each query that mining into ``folder`` left out for their high scores."""
    pairs, scores = (load_array(folder / f"{name}.npy") for name in (LEFT_OUT, LEFT_OUT_SCORES))
    queries = load_array(folder / "queries.npy")
    positives, own = (load_array(folder / f"{name}.npy") for name in (POSITIVES, POSITIVE_SCORES))
    return _best(queries, pairs, scores, positives, own, depth)


def are_negatives(
    negatives: Negatives, scorer: Scorer, relevant: Mapping[int, NDArray[np.integer]], judged: Ids, depth: int
) -> Suspects:
    """Score the first ``depth`` negatives of each query, which the retriever ranked highest, and return them as suspects.

    Args:
        negatives: the mined negatives of the queries.
        scorer: scores the negatives and the positives.
        relevant: query row -> its positives; queries without positives are skipped.
        judged: int64 (j,), pairs that people have judged already, as (query << 32) + passage; they are left out.
        depth: number of negatives per query.
    """
    places = np.flatnonzero(np.isin(negatives.query_rows, np.fromiter(relevant, np.int64)))
    queries = np.asarray(negatives.query_rows)[places]
    pairs, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    positives, own = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for first in range(0, len(places), BLOCK):
        rows = queries[first : first + BLOCK]
        passages = np.asarray(negatives.passage_rows[places[first : first + BLOCK], :depth], np.int64)
        passages[np.isin(packed(rows[:, None], passages), judged)] = -1
        found = scorer.score(rows, passages)
        least, which = lowest(scorer, rows, [relevant[row] for row in rows.tolist()])
        there = passages >= 0
        pairs.append(packed(np.repeat(rows, there.sum(axis=1)), passages[there]))
        scores.append(found[there])
        positives.append(which)
        own.append(least)
    parts = (np.concatenate(pairs), np.concatenate(scores), np.concatenate(positives), np.concatenate(own))
    return _best(queries, *parts, depth)


def _best(
    queries: Ids, pairs: Ids, scores: Scores, positives: NDArray[np.integer], own: Scores, depth: int
) -> Suspects:
    """Return the ``depth`` best pairs of each query, sorted by the relative difference between score and positive's score."""
    order = np.lexsort((pairs, -scores, pairs >> 32))  # by query, best first; NaN last
    pairs, scores = pairs[order], scores[order]
    rank = np.arange(len(pairs)) - np.searchsorted(pairs >> 32, pairs >> 32)
    pairs, scores = pairs[rank < depth], scores[rank < depth]
    sorter = np.argsort(queries)
    place = sorter[np.searchsorted(queries, pairs >> 32, sorter=sorter)] if len(pairs) else np.empty(0, np.int64)
    measure = own[place].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        above = (scores - measure) / np.abs(measure)  # ratio - 1 if the positive's score is above 0
    order = np.lexsort((pairs, -above))
    pairs, place = pairs[order], place[order]
    return Suspects(pairs >> 32, pairs & ROW, positives[place].astype(np.int64), scores[order], own[place])
