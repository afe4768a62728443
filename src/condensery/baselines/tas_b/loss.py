"""The dual supervision of TAS-Balanced (Hofstätter et al. 2021): margins of a pairwise teacher and of an in-batch teacher.

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector.
"""

import torch
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.distillation import MarginMSE, margins
from condensery.losses.registry import register
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.ranges import Positive, Weight, check_values


@register("dual_supervision")
class DualSupervision(RetrievalLoss):
    """L_Pair + alpha L_InB of TAS-Balanced (Hofstätter et al. 2021, "Efficiently Teaching an Effective Dense Retriever").

    L_Pair is ``margin_mse`` with a teacher that has scored each query's own passages, such as cross-encoders. L_InB has a
    second teacher, which scores all pairs of the batch, as ColBERT can. L_InB compares the margins of the student and
    of this teacher between a query's positive p+ and every other passage of the batch:

        L_InB = 1/2 (mean over q and all p- of E(q, p+, p-) + mean over q and the p+' of other queries of E(q, p+, p+')),
        E(q, p, p') = ((s(q, p) - s(q, p')) - (t(q, p) - t(q, p')))^2,

    where s is the student's score, t the second teacher's score, and p- the passages that are not the positive of any
    query. The authors' code averages in this way; the paper writes sums.

    Args:
        temperature: divisor of the student's inner products.
        teacher_temperature: divisor of the pairwise teacher's scores.
        in_batch_temperature: divisor of the in-batch teacher's scores.
        in_batch_weight: weight alpha of L_InB.

    Raises:
        UserError: a temperature is not above 0, or the weight is below 0.
    """

    needs_teacher = True

    def __init__(
        self,
        temperature: Positive = 1.0,
        teacher_temperature: Positive = 1.0,
        in_batch_temperature: Positive = 1.0,
        in_batch_weight: Weight = 0.75,
    ) -> None:
        check_values(DualSupervision, locals(), "dual_supervision")
        super().__init__()
        self.pairwise = MarginMSE(temperature, teacher_temperature)
        self.temperature, self.teacher_temperature = temperature, teacher_temperature
        self.in_batch_temperature, self.in_batch_weight = in_batch_temperature, in_batch_weight

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
        in_batch: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of both losses, a scalar. Arguments as in ``RetrievalLoss``.

        A passage that is ``known`` to be relevant is excluded only in L_Pair, because the in-batch teacher says how relevant
        it is. Raises ``UserError`` if one of the two teachers is missing.
        """
        if teacher is None or in_batch is None:
            raise UserError("dual_supervision learns from a teacher and from an in-batch teacher, and one is missing")
        of_pairs = self.pairwise(queries, passages, positive, known, teacher)
        theirs = margins(in_batch.to(queries.dtype) / self.in_batch_temperature, positive)  # (q, p)
        ours = margins(queries @ passages.T / self.temperature, positive)  # (q, p)
        scored = (~theirs.isnan()).scatter(1, positive[:, None], False)  # (q, p), without each query's own positive
        squares = torch.where(scored, ours - theirs, 0.0).square()  # (q, p)
        relevant = torch.zeros(len(passages), dtype=torch.bool, device=positive.device)  # (p,)
        relevant[positive] = True
        # two scalars
        halves = [(squares * kind).sum() / (scored & kind).sum().clamp(min=1) for kind in (relevant, ~relevant)]
        return of_pairs + self.in_batch_weight * (halves[0] + halves[1]) / 2
