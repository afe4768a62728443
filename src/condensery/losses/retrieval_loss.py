"""What the losses of the bi-encoder have in common."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class RetrievalLoss(nn.Module):
    """A loss of a batch of queries and passages, of which each query has one positive.

    It is computed once a step from the vectors of the whole batch, whatever its chunking and however many processes
    share it (Gao and Callan 2021b, §3.3). Weights of its own, such as a learned temperature, are made in ``__init__`` or
    ``prepare`` and read in ``forward``, or in ``features``, which is called chunk by chunk. A subclass raises ``UserError``
    for options that it cannot take.

    Where a model is cast to bf16 or fp16, its loss stays in fp32: what it reads is, and a step of a learned temperature
    would be lost in rounding.

    A loss that learns from a teacher takes ``teacher`` in ``forward``; one that takes four arguments is trained without.

    Attributes:
        needs_teacher: it cannot be computed without a teacher's scores, which is said before any work is begun.
        normalised: the encoder divides its vectors by their lengths; set by the module before ``prepare``.
    """

    needs_teacher: bool = False
    normalised: bool = False

    def prepare(self, hidden_size: int, seed: int) -> None:
        """Make the weights of the loss, if it has any. ``hidden_size``: dimensions d of a vector."""

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        """What ``forward`` takes of a chunk: by default its vectors (b, d). ``tower``: QUERY or PASSAGE."""
        return vectors

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """The mean over the queries, a scalar.

        Args:
            queries: (q, d) features in fp32 or wider.
            passages: (p, d), positives and hard negatives of all queries.
            positive: (q,) the row in ``passages`` of each query's positive.
            known: (q, p) True where a passage is known to be relevant to the query; None = that is not to be looked at.
            teacher: (q, p) fp32, how a teacher scores the pair; NaN where it has not; None = there is no teacher. It is given
                only where there is one.
        """
        raise NotImplementedError

    def _apply(self, change: Callable[[Tensor], Tensor], *others: Any) -> Self:
        """What casts and moves a module, and its submodules with it."""

        def kept(weight: Tensor) -> Tensor:
            changed = change(weight)
            narrower = changed.is_floating_point() and changed.itemsize < min(weight.itemsize, 4)
            return weight.to(changed.device) if narrower else changed

        return super()._apply(kept, *others)
