"""Distillation losses: the student learns a teacher's scores of a query's passages, not only which passage is relevant.

The student's score of a query q and a passage d is <q, d> / temperature. The teacher's score is read from the batch and
divided by teacher_temperature. If the teacher has not scored a pair, the score in the batch is NaN, and the pair is left out
of the loss.

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector.
"""

import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.losses.info_nce import info_nce
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.ranges import Positive, Weight, check_values


@register("margin_mse")
class MarginMSE(RetrievalLoss):
    """The squared difference between the student's and the teacher's margins (Hofstätter et al. 2020, eq. 8).

    A margin is the score of the positive minus the score of a negative. The loss is the mean over all pairs of a query and
    a negative that the teacher has scored. A query is left out if its positive has no score or if none of its negatives has a
    score.

    Args:
        temperature: divisor of the student's inner products, as in InfoNCE.
        teacher_temperature: divisor of the teacher's scores.

    Raises:
        UserError: a temperature is not above 0.
    """

    needs_teacher = True

    def __init__(self, temperature: Positive = 1.0, teacher_temperature: Positive = 1.0) -> None:
        check_values(MarginMSE, locals(), "margin_mse")
        super().__init__()
        self.temperature, self.teacher_temperature = temperature, teacher_temperature

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the mean squared error of the margins, a scalar. Arguments as in ``RetrievalLoss``.

        A passage that is ``known`` to be relevant is excluded as a negative. Raises ``UserError`` if there is no teacher.
        """
        teacher = given_teacher(teacher, "margin_mse")
        taught = teacher.to(queries.dtype) / self.teacher_temperature  # (q, p)
        errors = margins(queries @ passages.T / self.temperature, positive) - margins(taught, positive)  # (q, p)
        counted = ~taught.isnan() & ~taught.gather(1, positive[:, None]).isnan()  # (q, p)
        if known is not None:
            counted = counted & ~known  # (q, p)
        counted = counted.scatter(1, positive[:, None], False)  # (q, p)
        squares = torch.where(counted, errors, 0.0).square()  # (q, p)
        return squares.sum() / counted.sum().clamp(min=1)


def given_teacher(teacher: Tensor | None, loss: str) -> Tensor:
    """Return the teacher's scores. If there are none, raise ``UserError`` with ``loss``, the name of the loss."""
    if teacher is None:
        raise UserError(f"the loss {loss} needs a teacher's scores; pass them as the argument teacher")
    return teacher


def margins(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the score of each query's positive minus the score of each passage, (q, p).

    Args:
        scores: (q, p) the score of each pair.
        positive: (q,) the column of each query's positive.
    """
    return scores.gather(1, positive[:, None]) - scores


@register("kl")
class KLDivergence(RetrievalLoss):
    """The KL divergence KL(teacher || student) between the distributions over a query's scored passages.

    Both distributions are softmaxes over the same passages (Hinton et al. 2015; Lin et al. 2020, "Distilling Dense
    Representations for Ranking using Tightly-Coupled Teachers"). The loss is the mean over the queries for which the teacher
    has scored two passages or more, because the softmax over one passage is always 1. sentence-transformers'
    ``DistillKLDivLoss`` multiplies the divergence by temperature ** 2; this loss does not.

    Args:
        temperature: divisor of the student's inner products, as in InfoNCE.
        teacher_temperature: divisor of the teacher's scores.
        contrast_weight: weight with which the InfoNCE loss over the whole batch is added to the divergence; 0 = no InfoNCE.

    Raises:
        UserError: a temperature is not above 0, or the weight is below 0.
    """

    needs_teacher = True

    def __init__(
        self, temperature: Positive = 1.0, teacher_temperature: Positive = 1.0, contrast_weight: Weight = 0.0
    ) -> None:
        check_values(KLDivergence, locals(), "kl")
        super().__init__()
        self.temperature, self.teacher_temperature = temperature, teacher_temperature
        self.contrast_weight = contrast_weight

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the divergence plus the weighted InfoNCE loss, a scalar. Arguments as in ``RetrievalLoss``.

        A passage that is ``known`` to be relevant is excluded as a negative only in InfoNCE. The divergence keeps the
        passage, because the teacher's score says how relevant it is. Raises ``UserError`` if there is no teacher.
        """
        teacher = given_teacher(teacher, "kl")
        scored = ~teacher.isnan()  # (q, p)
        scored = scored & (scored.sum(dim=1, keepdim=True) > 1)  # (q, p), without queries that have one scored passage
        theirs = _log_softmax(teacher.to(queries.dtype) / self.teacher_temperature, scored)  # (q, p)
        ours = _log_softmax(queries @ passages.T / self.temperature, scored)  # (q, p)
        # both log probabilities are 0 for a passage without a score, so the passage adds nothing
        divergence = (theirs.exp() * (theirs - ours)).sum() / scored.any(dim=1).sum().clamp(min=1)
        if not self.contrast_weight:
            return divergence
        return divergence + self.contrast_weight * info_nce(queries, passages, positive, known, self.temperature)


def _log_softmax(scores: Tensor, scored: Tensor) -> Tensor:
    """Return the log softmax over each query's ``scored`` passages, (q, p).

    The result and its gradient are 0 at passages that are not scored, even for a query without any scored passage.
    """
    lowest = torch.finfo(scores.dtype).min  # -inf would give NaN where no passage is scored
    return torch.where(scored, nn.functional.log_softmax(torch.where(scored, scores, lowest), dim=1), 0.0)
