"""The learning-to-rank loss of Zhao et al. (eq. 14), kept for comparison with the contrastive loss over inner products.

The score of a query q and a passage d is sigmoid(W [q; d] + b), as printed in the paper. W [q; d] equals W_q q + W_d d. So
the loss needs only one number per query, W_q q + b, and one number per passage, W_d d. The gradient cache treats these
numbers as vectors of one dimension. A consequence of the formula is that all queries rank the passages in the same order, by
W_d d. Zhao et al. report that the result is "much worse" (§4.3).

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector, b rows of a chunk.
"""

import torch
from torch import Tensor, nn

from condensery.losses.info_nce import info_nce
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.biencoder import QUERY
from condensery.randomness import hash64
from condensery.ranges import Positive


@register("learning_to_rank")
class LearningToRank(RetrievalLoss):
    """The negative log softmax of sigmoid(W [q; d] + b) at the positive, averaged over queries (Zhao et al., eq. 14).

    W and b are used in training only, not in retrieval.

    Args:
        temperature: divisor of the scores.
    """

    weight: nn.Parameter  # (2, d): row 0 is W_d, row 1 is W_q
    bias: nn.Parameter  # (1,)

    def __init__(self, temperature: Positive = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def prepare(self, hidden_size: int, seed: int) -> None:
        """Create W, randomly initialised by ``seed``, and b, which is zero."""
        random = torch.Generator().manual_seed(hash64(seed, "learned score") >> 1)
        self.weight = nn.Parameter(torch.randn(2, hidden_size, generator=random) * 0.02)
        self.bias = nn.Parameter(torch.zeros(1))

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        """Return each row's term of the score, (b, 1): W_q q + b for a query, W_d d for a passage."""
        numbers = (vectors * self.weight[1 if tower == QUERY else 0]).sum(dim=-1, keepdim=True)  # (b, 1)
        return numbers + self.bias if tower == QUERY else numbers

    def forward(  # type: ignore[override]  # without a teacher
        self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the mean of the loss over the queries, a scalar.

        ``queries`` (q, 1) and ``passages`` (p, 1) are results of ``features``. Other arguments as in ``RetrievalLoss``.
        """
        scores = torch.sigmoid(queries + passages.T)  # (q, p)
        units = torch.eye(len(passages), dtype=scores.dtype, device=scores.device)  # (p, p); scores @ units.T = scores
        return info_nce(scores, units, positive, known, self.temperature)
