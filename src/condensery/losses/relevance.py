"""The losses of a cross-encoder.

The pointwise loss trains the model to tell whether a passage is relevant to its query. The listwise loss trains the model to
tell which passage in a query's list is relevant.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from condensery.losses.gradient_cache import wide
from condensery.models.cross_encoder import CrossEncoder
from condensery.tokens.batches import Chunk

Loss = Literal["pointwise", "listwise"]


def pointwise(scores: Tensor) -> Tensor:
    """Return the sum of the binary cross-entropy over all pairs (RocketQA, Qu et al. 2021, eq. 5).

    Args:
        scores: (l, s) logits of l queries; column 0 holds the positives, the other columns hold the negatives.
    """
    labels = torch.zeros_like(scores)  # (l, s)
    labels[:, 0] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def listwise(scores: Tensor) -> Tensor:
    """Return the negative log softmax of the positive among the passages of its query, summed over the queries.

    The loss depends only on differences between scores, so the sigmoid of one score is not a probability of relevance.

    Args:
        scores: (l, s) logits of l queries; column 0 holds the positives, the other columns hold the negatives.
    """
    return nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long), reduction="sum")


class RelevanceOfLists:
    """Wraps a cross-encoder so that the gradient cache can use it as a ``ChunkEncoder``.

    A cross-encoder computes no vectors, so no loss compares the vectors of the batch. Each chunk has a loss of its own, and
    the sum over all chunks is the mean loss of the batch.

    Args:
        model: cross-encoder that scores the pairs.
        lists: number of lists in the batch, one list per query; with several processes, the mean number per process.
        size: number of pairs of query and passage in a list; the pair with the positive comes first. Rows i * size to
            (i + 1) * size - 1 of the batch are list i. A list is never split between chunks.
        loss: ``pointwise`` = the mean over all pairs, ``listwise`` = the mean over all lists.
    """

    def __init__(self, model: CrossEncoder, lists: float, size: int, loss: Loss) -> None:
        self.model, self.size = model, size
        self.name, self.loss = loss, pointwise if loss == "pointwise" else listwise
        self.count = lists * size if loss == "pointwise" else lists

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return zeros (b, 1), because a cross-encoder has no vectors to compare."""
        return torch.zeros(len(chunk), 1, device=chunk.input_ids.device)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return zeros (b, 1), and the chunk's contribution to the loss of the batch."""
        scores = wide(self.model.scores(chunk)).view(-1, self.size)  # (lists of the chunk, size)
        return self.vectors(chunk), {self.name: self.loss(scores) / self.count}
