"""Find suspected false negatives: unjudged passages that score nearly as high as a positive of the query, or higher.

Shapes: n queries, m pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import Negatives
from condensery.retrieval.no_negatives import ROW, Ids, packed
from condensery.retrieval.positive_aware import LEFT_OUT, LEFT_OUT_SCORES, POSITIVE_SCORES, POSITIVES, Scorer, lowest
from condensery.system.files import load_array

Scores = NDArray[np.float32]
BLOCK = 1024  # queries per scored block


@dataclass(frozen=True)
class Suspects:
    """Suspected false negatives, as m pairs of a query and a passage, the most suspicious pair first.

    Attributes:
        queries: int64 (m,), row number of the query.
        passages: int64 (m,), row number of the suspected passage.
        positives: int64 (m,), row number of the query's positive with the lowest score; -1 if no positive has a score.
        scores: float32 (m,), score of the suspected passage; NaN if it has no score.
        positive_scores: float32 (m,), score of the positive in ``positives``; NaN if no positive has a score.
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
    """Return the passages that mining excluded for their high scores, at most the ``depth`` best of each query.

    ``folder``: artifact of the mined negatives.
    """
    pairs, scores = (load_array(folder / f"{name}.npy") for name in (LEFT_OUT, LEFT_OUT_SCORES))
    queries = load_array(folder / "queries.npy")
    positives, own = (load_array(folder / f"{name}.npy") for name in (POSITIVES, POSITIVE_SCORES))
    return _best(queries, pairs, scores, positives, own, depth)


def are_negatives(
    negatives: Negatives, scorer: Scorer, relevant: Mapping[int, NDArray[np.integer]], judged: Ids, depth: int
) -> Suspects:
    """Return the first ``depth`` mined negatives of each query as suspects, with the scores of ``scorer``.

    These are the negatives that the retriever ranked highest.

    Args:
        negatives: the mined negatives of the queries.
        scorer: scores the negatives and the positives.
        relevant: query row -> its positives. Queries without positives are skipped.
        judged: int64 (j,), pairs that people have judged already, as (query << 32) + passage. They are left out.
        depth: number of negatives per query.
    """
    places = np.flatnonzero(np.isin(negatives.query_rows, np.fromiter(relevant, np.int64)))
    queries = np.asarray(negatives.query_rows)[places]
    # pairs and their scores; for each query, the positive with the lowest score, and this score
    parts = [(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.float32))]
    for first in range(0, len(places), BLOCK):
        rows = queries[first : first + BLOCK]
        passages = np.asarray(negatives.passage_rows[places[first : first + BLOCK], :depth], np.int64)
        passages[np.isin(packed(rows[:, None], passages), judged)] = -1
        found = scorer.score(rows, passages)
        least, which = lowest(scorer, rows, [relevant[row] for row in rows.tolist()])
        there = passages >= 0
        parts.append((packed(np.repeat(rows, there.sum(axis=1)), passages[there]), found[there], which, least))
    pairs, scores, positives, own = map(np.concatenate, zip(*parts, strict=True))
    return _best(queries, pairs, scores, positives, own, depth)


def _best(
    queries: Ids, pairs: Ids, scores: Scores, positives: NDArray[np.integer], own: Scores, depth: int
) -> Suspects:
    """Select the ``depth`` pairs with the highest scores for each query, and sort them, the most suspicious first.

    The sort key is the relative difference between the passage's score and the positive's score.
    """
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
