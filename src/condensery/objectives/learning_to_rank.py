"""The learning-to-rank loss of A (eq. 14), kept as an ablation of the contrast by inner products.

The score of a query q and a passage d is sigmoid(W [q; d] + b). W [q; d] is W_q q + W_d d, so the loss needs one number of
each text, and goes through the gradient cache as vectors of one dimension do. It also means that all queries rank the
passages alike, by W_d d. That is the paper's formula as it is printed; its result is "much worse" (A §4.3).

Letters: q queries and p passages of a batch, d dimensions of a vector, b rows of a chunk.
"""

import torch
from torch import Tensor, nn

from condensery.models.biencoder import QUERY, BiEncoder
from condensery.objectives.contrast import retrieval_contrast
from condensery.randomness import hash64
from condensery.tokens.batches import Chunk


class LearnedScore(nn.Module):
    """Texts to the numbers that the score is the sum of: W_q q + b of a query, W_d d of a passage.

    What the gradient cache trains: ``model`` and the weights of the score, which retrieval does not use.
    """

    def __init__(self, model: BiEncoder, seed: int) -> None:
        super().__init__()
        dim = model.passage.model.config.hidden_size
        random = torch.Generator().manual_seed(hash64(seed, "learned score") >> 1)
        self.weight = nn.Parameter(torch.randn(2, dim, generator=random) * 0.02)  # (2, d): of passages, of queries
        self.bias = nn.Parameter(torch.zeros(1))
        self._encoder = [model]  # in a list: its weights belong to the module that trains it

    def vectors(self, chunk: Chunk) -> Tensor:
        """(b, 1)."""
        weight = self.weight[1 if chunk.tower == QUERY else 0]
        numbers = (self._encoder[0].vectors(chunk) * weight).sum(dim=-1, keepdim=True)
        return numbers + self.bias if chunk.tower == QUERY else numbers

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The same; there are no losses of a chunk's own."""
        return self.vectors(chunk), {}


def learning_to_rank(
    queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """-log softmax of sigmoid(W [q; d] + b) at the positive, averaged over the queries (A eq. 14).

    ``queries`` (q, 1) and ``passages`` (p, 1) are those of ``LearnedScore``; the rest is as in ``retrieval_contrast``.
    """
    scores = torch.sigmoid(queries + passages.T)  # (q, p)
    units = torch.eye(len(passages), dtype=scores.dtype, device=scores.device)  # products with them are the scores
    return retrieval_contrast(scores, units, positive, known, temperature)
