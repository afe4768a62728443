"""What a teacher says of the queries of a batch (distillation).

Of passages that are the same (``NoNegatives``) the first stands for all in a batch, and so it does here: it has its own score
where it has one, and otherwise that of a passage with its text.
"""

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.no_negatives import packed
from condensery.tokens.ranges import ranges
from condensery.training.batches.training_queries import TrainingQueries

Ids = NDArray[np.int64]
BLOCK = 4096  # queries that are looked at together


def taught(training: TrainingQueries, chosen: Ids) -> tuple[Ids, NDArray[np.float32]]:
    """What the teacher has scored for the queries ``chosen`` (b,): (s, 2) place in ``chosen`` and passage, and (s,) scores.

    No pair is there twice: of several sources the first that has it counts.
    """
    assert training.teacher is not None
    places, passages, scores = training.teacher.scored(chosen)
    first = passages if training.known is None else training.known.passages.first(passages)
    order = np.lexsort((first != passages, first, places))  # stable
    pairs = np.stack([places, first], axis=1)[order]
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[new], scores[order][new]


def coverage(training: TrainingQueries) -> tuple[int, int]:
    """Of all passages that may be drawn for the queries, positives and hard negatives, how many have a score, and all."""
    scored = total = 0
    for first in range(0, len(training.rows), BLOCK):
        chosen = np.arange(first, min(first + BLOCK, len(training.rows)))
        pool = training.negatives[chosen].astype(np.int64)
        hard = pool if training.known is None else training.known.passages.first(pool)
        own = training.starts[chosen + 1] - training.starts[chosen]
        places = np.concatenate([np.repeat(np.arange(len(chosen)), own), np.nonzero(pool >= 0)[0]])
        passages = np.concatenate([training.positives[ranges(training.starts[chosen], own)], hard[pool >= 0]])
        wanted = np.unique(packed(places, passages))
        scored += int(np.isin(wanted, packed(*taught(training, chosen)[0].T)).sum())
        total += len(wanted)
    return scored, total
