"""Queries that were made of passages, such as titles and sentences; training uses them beside the judged queries."""

from dataclasses import dataclass

import numpy as np

from condensery.tokens.store import TokenStore
from condensery.training.batches.steps import Ids, Share, items_of_step


@dataclass(frozen=True)
class TextQueries:
    """Queries with one positive each: the passage that the query was made of.

    Few passages are judged relevant to a training query. All other passages are only ever negatives, so a retriever that is
    trained on judged queries alone learns to rank them low. With queries made of passages every passage can be a positive.

    Attributes:
        store: the queries in tokens.
        rows: (n,) rows in ``store`` of the queries that are trained on.
        passages: (n,) row in the collection of each query's passage.
        batch_size: number of these queries a step.
    """

    store: TokenStore
    rows: Ids
    passages: Ids
    batch_size: int

    def of_step(self, step: int, seed: int, share: Share, replicated: bool) -> Ids:
        """Return the queries (b,) of a step that this process trains on, numbered 0 .. n - 1.

        Args:
            step: from 0.
            seed: of the order.
            share: this process's part of the step's queries.
            replicated: True = every process has the whole batch, and so all queries of the step.
        """
        items = items_of_step(step, self.batch_size, len(self.rows), seed)[1]
        return items if replicated else np.array_split(items, share.processes)[share.rank]
