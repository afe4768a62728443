"""Distillation: the student learns how a teacher scores the passages of a query, not only which one is relevant.

The student's score of a query q and a passage d is <q, d> / temperature, the teacher's is what travels in the batch over
teacher_temperature. A pair that the teacher has not scored is NaN there, and no part of the loss.

Letters: q queries and p passages of a batch, d dimensions of a vector.
"""

import torch
from torch import Tensor, nn

from condensery.arguments import check_numbers
from condensery.errors import UserError
from condensery.losses.info_nce import info_nce
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss


@register("margin_mse")
class MarginMSE(RetrievalLoss):
    """The squared error of the margins between the positive and each scored negative (Hofstätter et al. 2020, eq. 8).

    The mean over all pairs of a query and a negative that the teacher has scored: a query whose positive has no score, or
    that has no scored negative, is no part of it.

    Args:
        temperature: divides the student's inner products, as in InfoNCE.
        teacher_temperature: divides the teacher's scores.

    Raises:
        UserError: a temperature is not above 0.
    """

    needs_teacher = True

    def __init__(self, temperature: float = 1.0, teacher_temperature: float = 1.0) -> None:
        check_numbers("margin_mse", locals())
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
        """See ``RetrievalLoss``; a passage that is ``known`` to be relevant is no negative."""
        teacher = _given(teacher, "margin_mse")
        taught = teacher.to(queries.dtype) / self.teacher_temperature
        errors = _margins(queries @ passages.T / self.temperature, positive) - _margins(taught, positive)
        counted = ~taught.isnan() & ~taught.gather(1, positive[:, None]).isnan()
        if known is not None:
            counted = counted & ~known
        counted = counted.scatter(1, positive[:, None], False)
        squares = torch.where(counted, errors, 0.0).square()
        return squares.sum() / counted.sum().clamp(min=1)


def _given(teacher: Tensor | None, loss: str) -> Tensor:
    if teacher is None:
        raise UserError(f"{loss} learns from a teacher's scores, and there are none")
    return teacher


def _margins(scores: Tensor, positive: Tensor) -> Tensor:
    """How much higher each query's positive scores than every passage, (q, p)."""
    return scores.gather(1, positive[:, None]) - scores


@register("kl")
class KLDivergence(RetrievalLoss):
    """The KL divergence of the student's distribution over a query's scored passages from the teacher's.

    Both are softmaxes over the same passages (Hinton et al. 2015; Lin et al. 2020, "Distilling Dense Representations for
    Ranking using Tightly-Coupled Teachers"). The mean over the queries of which the teacher has scored two passages or more;
    one passage is no distribution. It is the plain divergence: sentence-transformers' ``DistillKLDivLoss`` is
    temperature ** 2 times as large.

    Args:
        temperature: divides the student's inner products, as in InfoNCE.
        teacher_temperature: divides the teacher's scores.
        contrast_weight: of InfoNCE over the whole batch, which is added; 0 = without.

    Raises:
        UserError: a temperature is not above 0, or the weight is below 0.
    """

    needs_teacher = True

    def __init__(
        self, temperature: float = 1.0, teacher_temperature: float = 1.0, contrast_weight: float = 0.0
    ) -> None:
        check_numbers("kl", locals())
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
        """See ``RetrievalLoss``; ``known`` is left out of the contrast alone, for the teacher knows what is relevant."""
        teacher = _given(teacher, "kl")
        scored = ~teacher.isnan()
        scored = scored & (scored.sum(dim=1, keepdim=True) > 1)
        theirs = _log_softmax(teacher.to(queries.dtype) / self.teacher_temperature, scored)
        ours = _log_softmax(queries @ passages.T / self.temperature, scored)
        # of a passage that is not scored both are 0
        divergence = (theirs.exp() * (theirs - ours)).sum() / scored.any(dim=1).sum().clamp(min=1)
        if not self.contrast_weight:
            return divergence
        return divergence + self.contrast_weight * info_nce(queries, passages, positive, known, self.temperature)


def _log_softmax(scores: Tensor, scored: Tensor) -> Tensor:
    """Over the passages (q, p) that are ``scored``; 0 elsewhere, also of a query without any, with gradients of 0 there."""
    lowest = torch.finfo(scores.dtype).min  # -inf would give NaN where no passage is scored
    return torch.where(scored, nn.functional.log_softmax(torch.where(scored, scores, lowest), dim=1), 0.0)
