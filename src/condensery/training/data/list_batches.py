"""Batches for the cross-encoder: each query is paired with a positive and with hard negatives."""

from dataclasses import dataclass

import numpy as np

from condensery.tokens.pairs import PairReader
from condensery.training.data.steps import ALL, Batch, Share
from condensery.training.data.triple_batches import TripleBatches


@dataclass(frozen=True, kw_only=True)
class ListBatch(Batch):
    """A batch of lists. The list of a query holds pairs of the query and a passage. A list is never split between chunks.

    Rows i * size to (i + 1) * size - 1 are the pairs of query i; the pair with the positive comes first.

    Attributes:
        lists: number of lists, one per query.
        size: number of passages per query.
    """

    lists: int
    size: int


class ListBatches:
    """Makes lists of pairs from the queries, positives and hard negatives of the bi-encoder's batches.

    Args:
        triples: batches that draw the positives and the hard negatives.
        reader: converts pairs to token ids.
    """

    def __init__(self, triples: TripleBatches, reader: PairReader) -> None:
        self.triples, self.reader, self.budget = triples, reader, triples.budget

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the training queries; the last batch may be short."""
        return self.triples.steps_an_epoch()

    def batch(self, step: int, share: Share = ALL) -> ListBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        epoch, items = self.triples.order(step)
        chosen, replicated = share.of(items)
        positive, hard = self.triples.draw(epoch, chosen)  # (lists,), (lists, size - 1)
        passages = np.column_stack([positive, hard])  # (lists, size)
        queries = np.repeat(self.triples.training.rows[chosen], passages.shape[1])  # (lists * size,)
        parts = self.reader.chunks(queries, passages.reshape(-1), self.budget, together=passages.shape[1])
        lists, size = passages.shape
        tokens = sum(int(chunk.lengths.sum()) for chunk in parts)
        return ListBatch(chunks=parts, lists=lists, size=size, tokens=tokens, replicated=replicated)
