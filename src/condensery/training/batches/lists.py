"""Batches for the cross-encoder: queries, each with a positive and negatives, which are scored one pair at a time."""

from dataclasses import dataclass

import numpy as np

from condensery.tokens.pairs import PairReader
from condensery.training.batches.steps import ALL, Batch, Share
from condensery.training.batches.triples import TripleBatches


@dataclass(frozen=True, kw_only=True)
class ListBatch(Batch):
    """Lists of pairs, one list a query; chunks are of whole lists.

    Rows i * size to (i + 1) * size - 1 are those of query i, its positive first.

    Attributes:
        lists, size: queries, and passages of each.
    """

    lists: int
    size: int


class ListBatches:
    """The queries, positives and hard negatives of the bi-encoder's batches, as lists of pairs.

    Args:
        triples: draws them.
        reader: writes the pairs.
    """

    def __init__(self, triples: TripleBatches, reader: PairReader) -> None:
        self.triples, self.reader = triples, reader

    @property
    def budget(self) -> int:
        """Padded tokens that a chunk may hold."""
        return self.triples.budget

    @budget.setter
    def budget(self, tokens: int) -> None:
        self.triples.budget = tokens

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return self.triples.steps_an_epoch()

    def batch(self, step: int, share: Share = ALL) -> ListBatch:
        """See ``Batches``."""
        epoch, items = self.triples.order(step)
        chosen, replicated = share.of(items)
        positive, hard = self.triples.draw(epoch, chosen)
        passages = np.column_stack([positive, hard])  # (lists, size)
        queries = np.repeat(self.triples.training.rows[chosen], passages.shape[1])
        parts = self.reader.chunks(queries, passages.reshape(-1), self.triples.budget, together=passages.shape[1])
        lists, size = passages.shape
        tokens = sum(int(chunk.lengths.sum()) for chunk in parts)
        return ListBatch(chunks=parts, lists=lists, size=size, tokens=tokens, replicated=replicated)
