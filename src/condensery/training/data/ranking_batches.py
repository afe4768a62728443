"""Batches of queries with a teacher's rankings of passages, and the frozen passage vectors."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from condensery.models.biencoder import QUERY
from condensery.retrieval.indexes.fusion import min_max
from condensery.retrieval.ranking import Ranking
from condensery.tokens.text_reader import TextReader
from condensery.training.data.steps import ALL, Batch, Ids, PassageVectors, Share, items_of_step


@dataclass(frozen=True, kw_only=True)
class RankingBatch(Batch):
    """A batch of q queries, with the c passages that the teacher ranked for at least one of these queries.

    Attributes:
        passages: (c, d) frozen vectors of the passages.
        teacher: (q, c) fp32, the teacher's scores in [0, 1]; 0 if the teacher did not rank the passage for the query.
    """

    passages: Tensor
    teacher: Tensor


class RankingBatches:
    """Makes batches of queries, in a new random order each epoch.

    Args:
        queries: reader of the queries.
        rows: (n,) rows of the training queries in the reader's store.
        ranking: the teacher's scores (n, k) and passages (n, k) for these queries. The scores of each query are scaled to
            [0, 1].
        vectors: function that returns the frozen vectors of passages.
        batch_size: number of queries per step.
        budget: maximum number of tokens in a chunk, padding included.
        seed: seed of the order.
    """

    def __init__(
        self,
        queries: TextReader,
        rows: Ids,
        ranking: Ranking,
        vectors: PassageVectors,
        *,
        batch_size: int,
        budget: int,
        seed: int,
    ) -> None:
        self.queries, self.query_rows, self.vectors = queries, rows, vectors
        self.passages, self.scores = ranking[1], min_max(ranking).astype(np.float32)
        self.batch_size, self.budget, self.seed = batch_size, budget, seed

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the queries; the last batch may be short."""
        return -(-len(self.query_rows) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> RankingBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        _, items = items_of_step(step, self.batch_size, len(self.query_rows), self.seed)
        chosen, replicated = share.of(items)
        found, scores = self.passages[chosen], self.scores[chosen]  # (q, k) each
        candidates, place = np.unique(found[found >= 0], return_inverse=True)  # (c,), (ranked pairs,)
        teacher = np.zeros((len(chosen), len(candidates)), np.float32)  # (q, c)
        teacher[np.nonzero(found >= 0)[0], place] = scores[found >= 0]
        parts = self.queries.chunks(self.query_rows[chosen], self.budget, QUERY)
        return RankingBatch(
            chunks=parts,
            tokens=sum(int(chunk.lengths.sum()) for chunk in parts),
            passages=torch.from_numpy(self.vectors(candidates)),
            teacher=torch.from_numpy(teacher),
            replicated=replicated,
        )
