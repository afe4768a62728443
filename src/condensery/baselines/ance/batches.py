"""The batches of ANCE: a query's hard negatives are passages that the retriever of the last refresh ranks high.

Symbols in shapes: q queries and p passages of a batch, k hard negatives of a query, n queries mined in a refresh.
"""

import time
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives
from condensery.training.data.steps import ALL, Ids, Share
from condensery.training.data.triple_batches import TripleBatch, TripleBatches

_PAUSE = 0.05  # seconds between two checks of a file


@dataclass(frozen=True, kw_only=True)
class AnceBatch(TripleBatch):
    """A batch of q queries, each with its positive and k hard negatives among the p passages.

    Attributes:
        hard: (q, k) the index of each query's own hard negatives among the p passages.
    """

    hard: Tensor


class RefreshedBatches:
    """Makes batches with the hard negatives of a refresh. The batch of step s has the negatives of refresh s // ``every``.

    A refresh is a folder with a list of negatives for each query. Before the first step of a refresh, ``Refresh`` mines the
    lists with the current weights. So a batch depends on config and step alone. A process that makes batches ahead of
    training waits for the folder. Before training begins there is no folder, and passages of the whole collection are drawn
    in place of the mined negatives.

    Args:
        triples: batches that draw positives and hard negatives; their pool holds the negatives of other sources.
        every: number of steps of a refresh.
        folder: folder of the refreshes.

    Attributes:
        waits: whether training has begun. A batch then waits until its refresh is complete.
        budget: maximum number of tokens in a chunk, padding included.
    """

    def __init__(self, triples: TripleBatches, every: int, folder: Path) -> None:
        self.triples, self.every, self.folder, self.budget = triples, every, folder, triples.budget
        self.waits = False
        self._drawn: tuple[int, TripleBatches] | None = None

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the training queries; the last batch may be short."""
        return self.triples.steps_an_epoch()

    def batch(self, step: int, share: Share = ALL) -> AnceBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        triples = self._of_refresh(step // self.every) if self.waits else self.triples
        triples.budget = self.budget
        epoch, items = triples.order(step)
        chosen, _ = share.of(items)
        made = triples.batch(step, share)
        hard = np.searchsorted(made.passages.numpy(), triples.draw(epoch, chosen)[1])  # (q, k)
        return AnceBatch(**vars(made), hard=torch.from_numpy(hard))

    def place(self, refresh: int) -> Path:
        """Return the folder of a refresh's lists."""
        return self.folder / f"{refresh:05d}"

    def there(self, refresh: int) -> bool:
        """Return whether the lists of a refresh are complete."""
        return (self.place(refresh) / "queries.npy").exists()

    def asked(self, refresh: int, last: int) -> Ids:
        """Return the distinct training queries (n,) of a refresh's steps, without the steps from ``last`` on."""
        steps = range(refresh * self.every, min((refresh + 1) * self.every, last))
        return np.unique(np.concatenate([self.triples.order(step)[1] for step in steps]))

    def _of_refresh(self, refresh: int) -> TripleBatches:
        """Return batches whose pool of negatives includes the lists of a refresh. Wait until these lists are complete."""
        if self._drawn is None or self._drawn[0] != refresh:
            while not self.there(refresh):
                time.sleep(_PAUSE)
            made, training = copy(self.triples), self.triples.training
            given = training.negatives
            assert isinstance(given, NegativePool)
            sources = [*given.sources, Negatives.mapped(self.place(refresh))]
            pool = NegativePool(sources, training.rows, [*given.depths, None])
            made.training = replace(training, negatives=pool)
            self._drawn = refresh, made
        return self._drawn[1]
