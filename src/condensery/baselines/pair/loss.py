"""The loss of PAIR (Ren et al. 2021): the positive is nearer to its query than to any negative passage.

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector.
"""

from torch import Tensor, nn, where

from condensery.losses.info_nce import info_nce
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.ranges import Positive, Share, check_values


@register("passage_centric")
class PassageCentric(RetrievalLoss):
    """(1 - alpha) L_Q + alpha L_P of PAIR (Ren et al. 2021, "PAIR: Leveraging Passage-Centric Similarity Relation").

    L_Q, the query-centric loss, is InfoNCE. L_P, the passage-centric loss, compares the query q and the negatives p- with the
    positive p+. It is the negative log-likelihood of q among q and all p-:

        L_P = -log (exp s(p+, q) / (exp s(p+, q) + sum over p- of exp s(p+, p-))).

    Both losses have the same negatives: the passages of the batch that are not ``known`` to be relevant to the query. PAIR
    trains with this loss first, on pseudo-labelled queries too, and then with L_Q alone. The query and the passage tower must
    be shared, because L_P compares passages.

    Args:
        alpha: weight of the passage-centric loss.
        temperature: divisor of the inner products.

    Raises:
        UserError: ``alpha`` is not in [0, 1], or ``temperature`` is not above 0.
    """

    def __init__(self, alpha: Share = 0.1, temperature: Positive = 1.0) -> None:
        check_values(PassageCentric, locals(), "passage_centric")
        super().__init__()
        self.alpha, self.temperature = alpha, temperature

    def forward(  # type: ignore[override]  # without a teacher
        self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sum of both losses, averaged over the queries. Arguments as in ``RetrievalLoss``."""
        own = positive[:, None]  # (q, 1)
        relevant = passages[positive]  # (q, d)
        scores = relevant @ passages.T  # (q, p)
        scores = scores.scatter(1, own, (relevant * queries).sum(dim=1, keepdim=True)) / self.temperature  # (q, p)
        if known is not None:
            scores = where(known.scatter(1, own, False), float("-inf"), scores)  # (q, p)
        of_passages = nn.functional.cross_entropy(scores, positive)
        of_queries = info_nce(queries, passages, positive, known, self.temperature)
        return (1 - self.alpha) * of_queries + self.alpha * of_passages
