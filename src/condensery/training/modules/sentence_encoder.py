"""Training on sentence tasks: pairs of sentences with a score, or triplets."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.distributed import share_of
from condensery.losses.contrast import Contrast, weighted
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.similarity import cosine_regression, triplet_margin
from condensery.models.biencoder import BiEncoder
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.steps import ALL, Batch, Share, items_of_step
from condensery.training.modules.encoders import TowersModule


@dataclass(frozen=True, kw_only=True)
class SentenceBatch(Batch):
    """A batch of b examples with k sentences each. Rows i * b to (i + 1) * b - 1 hold sentence i of each example.

    Attributes:
        scores: (b,) the score of each example.
    """

    scores: Tensor


@dataclass(eq=False)
class SentenceBatches:
    """Makes batches of examples, in a new random order each epoch.

    Attributes:
        sentences: the store of all sentences.
        vocabulary: vocabulary of the tokens.
        rows: (n, k) the rows in ``sentences`` of each example's sentences.
        scores: (n,) the score of each example.
        batch_size: number of examples per step.
        length: maximum input length in tokens, [CLS] and [SEP] included.
        budget: maximum number of tokens in a chunk, padding included.
        seed: seed of the order.
    """

    sentences: TokenStore
    vocabulary: Vocabulary
    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    _: KW_ONLY
    batch_size: int
    length: int
    budget: int
    seed: int

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the examples; the last batch may be short."""
        return -(-len(self.rows) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> SentenceBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        _, items = items_of_step(step, self.batch_size, len(self.rows), self.seed)
        chosen, replicated = share.of(items)
        flat, starts = text_rows(self.sentences, self.rows[chosen].T.reshape(-1), self.vocabulary, self.length)
        parts = chunks(flat, starts, self.budget, self.vocabulary.pad)
        scores = torch.from_numpy(self.scores[chosen])
        return SentenceBatch(chunks=parts, tokens=len(flat), scores=scores, replicated=replicated)


class SentenceModule(TowersModule):
    """Trains a bi-encoder on sentence pairs (cosine regression) or triplets (margin loss; Reimers and Gurevych 2019).

    Args:
        model: see ``TowersModule``.
        margin: margin of the triplet loss.
        others: further arguments of ``TowersModule``.
    """

    def __init__(self, model: str | Path | BiEncoder, *, margin: float = 1.0, **others: Any) -> None:
        super().__init__(model, **others)
        self.margin = margin
        self._remember(locals())

    def objective(self, batch: SentenceBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the loss: a mean over the examples of all processes."""

        def loss(vectors: Tensor) -> Tensor:
            first, second, *others = vectors.unflatten(0, (-1, len(batch.scores)))  # k tensors (b, d)
            if others:
                return triplet_margin(first, second, others[0], self.margin)
            return cosine_regression(first, second, batch.scores.to(vectors.dtype))

        return self.model, weighted(loss, len(batch.scores) / share_of(len(batch.scores)))
