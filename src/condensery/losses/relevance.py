"""What a cross-encoder learns: which passage of a query's list is the relevant one, or whether each of them is."""

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from condensery.losses.gradient_cache import wide
from condensery.tokens.batches import Chunk

Loss = Literal["pointwise", "listwise"]


class PairScorer(Protocol):
    """A model that scores pairs."""

    def scores(self, chunk: Chunk) -> Tensor:
        """The logits (b,) of a chunk of pairs."""


def pointwise(scores: Tensor) -> Tensor:
    """Binary cross-entropy of every pair, summed (RocketQA, Qu et al. 2021, eq. 5).

    Args:
        scores: (l, s) logits of l queries; column 0 holds the positives, the others the negatives.
    """
    labels = torch.zeros_like(scores)
    labels[:, 0] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def listwise(scores: Tensor) -> Tensor:
    """-log softmax of the positive among the passages of its query, summed over the queries; arguments as above.

    It knows differences alone: the sigmoid of a score says nothing about a single pair.
    """
    return nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long), reduction="sum")


class RelevanceOfLists:
    """A cross-encoder as the gradient cache sees it: no vectors, and a loss that adds up to the mean of the batch.

    Args:
        model: scores the pairs.
        lists, size: how many lists the batch has, and the pairs of each, the positive first. Rows i * size to
            (i + 1) * size - 1 of the batch are list i; each stands in one chunk as a whole. With several processes ``lists``
            is the mean of their numbers.
        loss: pointwise = a mean over pairs, listwise = a mean over lists.
    """

    def __init__(self, model: PairScorer, lists: float, size: int, loss: Loss) -> None:
        self.model, self.size = model, size
        self.name, self.loss = loss, pointwise if loss == "pointwise" else listwise
        self.count = lists * size if loss == "pointwise" else lists

    def vectors(self, chunk: Chunk) -> Tensor:
        """Nothing is contrasted: (b, 1) zeros."""
        return torch.zeros(len(chunk), 1, device=chunk.input_ids.device)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The chunk's share of the loss."""
        scores = wide(self.model.scores(chunk)).view(-1, self.size)
        return self.vectors(chunk), {self.name: self.loss(scores) / self.count}
