"""InfoNCE (van den Oord et al. 2018; DPR, Karpukhin et al. 2020, eq. 2), the loss of fine-tuning and of ICT."""

import torch
from torch import Tensor, nn

from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.ranges import Positive


@register("info_nce")
class InfoNCE(RetrievalLoss):
    """Negative log-likelihood of the positive among all passages of the batch (DPR, Karpukhin et al. 2020, eq. 2).

    Args:
        temperature: divisor of the inner products.
    """

    def __init__(self, temperature: Positive = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(  # type: ignore[override]  # without a teacher
        self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the mean of the loss over the queries, a scalar. Arguments as in ``RetrievalLoss``."""
        return info_nce(queries, passages, positive, known, self.temperature)


def info_nce(
    queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Return the negative log-likelihood of the positive among all passages of the batch.

    The loss is that of DPR (eq. 2) and of Gao and Callan 2021b (§3.4).

    Args:
        queries: (q, d) vectors.
        passages: (p, d) vectors of the positives and hard negatives of all queries.
        positive: (q,) the row of each query's positive in ``passages``.
        known: (q, p) bool, True where a passage of the batch is known to be relevant to the query. Such a passage is left
            out of the softmax, unless it is the query's positive. None = no passage is left out, as in the papers' code.
        temperature: divisor of the inner products (Wu et al. 2023, eq. 12).

    Returns:
        the mean of the loss over the queries, a scalar.
    """
    scores = queries @ passages.T / temperature  # (q, p)
    if known is not None:
        others = known.clone()  # (q, p) relevant passages other than the positive
        others[torch.arange(len(queries), device=others.device), positive] = False
        scores = scores.masked_fill(others, -torch.inf)
    return nn.functional.cross_entropy(scores, positive)
