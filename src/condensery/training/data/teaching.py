"""A teacher's scores for the queries of a batch (distillation).

In a batch, passages with equal text are replaced by the first of them (``NoNegatives``). The first passage gets its own score
if the teacher has scored it. Otherwise it gets the score of another passage with the same text.
"""

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.no_negatives import packed
from condensery.tokens.ranges import Ids, ranges
from condensery.training.data.training_queries import TrainingQueries

BLOCK = 4096  # number of queries that ``coverage`` reads at once


def taught(training: TrainingQueries, chosen: Ids) -> tuple[Ids, NDArray[np.float32]]:
    """Return the pairs that the teacher has scored for the queries ``chosen`` (b,), and their scores.

    Returns:
        the distinct pairs (s, 2) and their scores (s,). A pair is the index of a query in ``chosen`` and the row of a
        passage. If several sources have scored a pair, the score is that of the first source.
    """
    assert training.teacher is not None
    places, passages, scores = training.teacher.scored(chosen)  # (scored pairs,) each
    first = passages if training.known is None else training.known.passages.first(passages)  # (scored pairs,)
    order = np.lexsort((first != passages, first, places))  # stable; (scored pairs,)
    pairs = np.stack([places, first], axis=1)[order]  # (scored pairs, 2)
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[new], scores[order][new]


def coverage(training: TrainingQueries) -> tuple[int, int]:
    """Count the pairs of a query and a passage that may be drawn for the query, as positive or hard negative.

    Returns:
        the number of these pairs that the teacher has scored, and the number of all these pairs.
    """
    scored = total = 0
    for first in range(0, len(training.rows), BLOCK):
        chosen = np.arange(first, min(first + BLOCK, len(training.rows)))
        pool = training.negatives[chosen].astype(np.int64)  # (b, m)
        hard = pool if training.known is None else training.known.passages.first(pool)  # (b, m)
        own = training.starts[chosen + 1] - training.starts[chosen]  # (b,)
        places = np.concatenate([np.repeat(np.arange(len(chosen)), own), np.nonzero(pool >= 0)[0]])
        passages = np.concatenate([training.positives[ranges(training.starts[chosen], own)], hard[pool >= 0]])
        wanted = np.unique(packed(places, passages))
        scored += int(np.isin(wanted, packed(*taught(training, chosen)[0].T)).sum())
        total += len(wanted)
    return scored, total
