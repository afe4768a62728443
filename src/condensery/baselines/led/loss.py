"""The loss of LED (Zhang et al. 2023): a contrastive loss, plus a loss on the order of a lexical teacher's ranking.

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector, at most m scored passages of a query.
"""

from torch import Tensor

from condensery.losses.distillation import given_teacher
from condensery.losses.info_nce import info_nce
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.ranges import Positive, Weight, check_values


@register("rank_consistent")
class RankConsistent(RetrievalLoss):
    """InfoNCE plus the pairwise rank-consistent regularisation of LED (Zhang et al. 2023, "Lexicon-Enlightened Dense").

    Let d and d' be two passages of a query q such that the teacher scores d higher. The regularisation is the mean, over
    all these pairs, of

        max(0, s(q, d') - s(q, d)),

    where s is the student's score. So the loss depends only on the order of the teacher's scores, not on their size. With
    ``kl``, the student would learn the scores themselves, although a lexical teacher is not always better than its
    student. LED's lexicon-augmented contrastive loss is InfoNCE with the teacher's hard negatives. Mine these with the
    teacher, and name the mining stage among the ``negatives``.

    Args:
        temperature: divisor of the inner products.
        weight: weight of the regularisation.
        contrast_weight: weight of the InfoNCE loss over the whole batch.

    Raises:
        UserError: the temperature is not above 0, or a weight is below 0.
    """

    needs_teacher = True

    def __init__(self, temperature: Positive = 1.0, weight: Weight = 1.0, contrast_weight: Weight = 1.0) -> None:
        check_values(RankConsistent, locals(), "rank_consistent")
        super().__init__()
        self.temperature, self.weight, self.contrast_weight = temperature, weight, contrast_weight

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of both losses, a scalar. Arguments as in ``RetrievalLoss``.

        A passage that is ``known`` to be relevant is excluded as a negative only in InfoNCE. Raises ``UserError`` if there is
        no teacher.
        """
        teacher = given_teacher(teacher, "rank_consistent")
        scored = ~teacher.isnan()  # (q, p)
        most = int(scored.sum(dim=1).max())
        order = scored.int().argsort(dim=1, descending=True, stable=True)  # (q, p) the scored passages come first
        first = order[:, :most]  # (q, m)
        theirs = teacher.gather(1, first)  # (q, m), NaN where a query has fewer than m
        ours = (queries @ passages.T).gather(1, first) / self.temperature  # (q, m)
        before = theirs[:, :, None] > theirs[:, None, :]  # (q, m, m), False where a score is NaN
        excess = (ours[:, None, :] - ours[:, :, None]).clamp(min=0)  # (q, m, m): score of d' minus score of d
        regularisation = (excess * before).sum() / before.sum().clamp(min=1)
        contrast = info_nce(queries, passages, positive, known, self.temperature)
        return self.contrast_weight * contrast + self.weight * regularisation
