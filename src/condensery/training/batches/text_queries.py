"""Queries that were made of the passages, such as titles and sentences, which are trained on beside the judged ones."""

from dataclasses import dataclass

import numpy as np

from condensery.tokens.store import TokenStore
from condensery.training.batches.steps import Ids, Share, items_of_step


@dataclass(frozen=True)
class TextQueries:
    """Each has one positive, the passage that it was made of.

    Few passages are judged relevant to a training query. The others are negatives and nothing else, and a retriever that is
    trained on judged queries alone learns to rank them low. Here every passage can be a positive.

    Attributes:
        store: the queries in tokens.
        rows: (n,) those that are trained on.
        passages: (n,) the passage of each, by its row in the collection.
        batch_size: so many a step.
    """

    store: TokenStore
    rows: Ids
    passages: Ids
    batch_size: int

    def of_step(self, step: int, seed: int, share: Share, replicated: bool) -> Ids:
        """Which of them (b,) a step has, or this process of several; all of them where each has the whole batch."""
        items = items_of_step(step, self.batch_size, len(self.rows), seed)[1]
        return items if replicated else np.array_split(items, share.processes)[share.rank]
