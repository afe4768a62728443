"""The base class of the losses of the bi-encoder."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class RetrievalLoss(nn.Module):
    """Base class of losses over a batch of queries and passages in which each query has one positive.

    The loss is computed once per step from the vectors of the whole batch. It does not depend on the chunks or on the number
    of processes (Gao and Callan 2021b, §3.3). The loss may have trainable weights, such as a learned temperature. Create them
    in ``__init__`` or ``prepare``. Use them in ``forward``, or in ``features``, which is called once per chunk. A subclass
    raises ``UserError`` for options that it does not accept.

    If a model is cast to bf16 or fp16, the weights of its loss stay in fp32, for two reasons. The loss reads fp32 vectors,
    and an optimisation step of a learned temperature would be lost in rounding.

    A loss that learns from a teacher takes ``teacher`` in ``forward``. A loss whose ``forward`` has only the first four
    arguments is trained without a teacher.

    There are two kinds of teachers. A pairwise teacher, such as a cross-encoder, has scored each query's own passages. An
    in-batch teacher (Lin et al. 2020) scores each query with every passage of the batch. Either kind is passed as
    ``teacher``. A loss that learns from both kinds at once takes a further argument, ``in_batch``. The pairwise teacher's
    scores are then passed as ``teacher``, and the in-batch teacher's scores as ``in_batch``, (q, p) fp32.

    Attributes:
        needs_teacher: whether the loss cannot be computed without a teacher's scores; checked before any work begins.
        normalised: whether the encoder divides its vectors by their L2 norm; set by the module before ``prepare``.
    """

    needs_teacher: bool = False
    normalised: bool = False

    def __init__(self) -> None:  # without an `__init__` of its own, a subclass takes no options
        super().__init__()

    def prepare(self, hidden_size: int, seed: int) -> None:
        """Create the trainable weights of the loss, if it has any.

        Args:
            hidden_size: number of dimensions d of a vector.
            seed: seed of randomly initialised weights.
        """

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        """Return the features of a chunk for ``forward``; by default its vectors (b, d). ``tower``: QUERY or PASSAGE."""
        return vectors

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the mean of the loss over the queries, a scalar.

        Args:
            queries: (q, d) features in fp32 or wider.
            passages: (p, d) features of the positives and hard negatives of all queries.
            positive: (q,) the row of each query's positive in ``passages``.
            known: (q, p) bool, True where a passage, the positive included, is known to be relevant to the query. ``forward``
                has to exclude these passages as negatives. None = no passage is excluded.
            teacher: (q, p) fp32, the teacher's score of each pair, NaN where there is no score; None = there is no teacher.
                The argument is passed only if there is a teacher.
        """
        raise NotImplementedError

    def _apply(self, change: Callable[[Tensor], Tensor], *others: Any) -> Self:
        """Cast or move the loss and its submodules as torch's method does, but cast no weight to less than fp32."""

        def kept(weight: Tensor) -> Tensor:
            changed = change(weight)
            narrower = changed.is_floating_point() and changed.itemsize < min(weight.itemsize, 4)
            return weight.to(changed.device) if narrower else changed

        return super()._apply(kept, *others)
