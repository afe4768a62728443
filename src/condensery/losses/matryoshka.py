"""A loss over vectors truncated to several sizes (Matryoshka Representation Learning, Kusupati et al. 2022, eq. 1).

After training, the first dimensions of a vector can be used as a shorter vector; ``truncate_dim`` keeps only these
dimensions.

Symbols in shapes: q queries and p passages of a batch, d dimensions of a vector, b rows of a chunk, n sizes.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.losses.registry import Named, make_loss, register, takes_teacher
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.biencoder import PASSAGE
from condensery.ranges import Positive, Weight, fault


@register("matryoshka")
class Matryoshka(RetrievalLoss):
    """The weighted sum of a loss L at several vector sizes (Kusupati et al. 2022).

    The sum is sum_i w_i L(the first dims_i dimensions of each vector).

    Truncated vectors are normalised again if the encoder normalises its vectors. If L has trainable weights, each size has
    its own copy of these weights.

    Args:
        dims: the sizes, without repeats and at most d. The whole vector is trained only if d is one of the sizes.
        loss: the loss L, given as the name of a loss, a mapping with ``name`` and the loss's options, or a ``RetrievalLoss``.
        weights: the weights w, one per size; None = every weight is 1.
        temperature: the temperature of L if ``loss`` does not set it.

    Raises:
        UserError: sizes or weights are not valid, or there is no such loss.
    """

    losses: Any  # a ModuleList of ``RetrievalLoss``

    def __init__(
        self,
        dims: Sequence[int],
        loss: Named | RetrievalLoss = "info_nce",
        weights: Sequence[float] | None = None,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__()
        self.dims, self.weights = _sizes(dims), _weights(weights, dims)
        inner = loss if isinstance(loss, RetrievalLoss) else make_loss(loss, temperature=temperature)
        self.losses = nn.ModuleList(copy.deepcopy(inner) for _ in self.dims)
        self.needs_teacher = inner.needs_teacher
        self._own_features = type(inner).features is not RetrievalLoss.features
        self._widths = list(self.dims)

    def prepare(self, hidden_size: int, seed: int) -> None:
        """Create the trainable weights of each size's loss, if the loss has any.

        Raises:
            UserError: a size is above ``hidden_size``.
        """
        if max(self.dims) > hidden_size:
            raise UserError(
                f"loss: matryoshka: dims has {max(self.dims)}, but vectors have {hidden_size} dimensions; leave out larger"
                " dims, or train without truncate_dim, which is for searching with the trained checkpoint"
            )
        for size, loss in zip(self.dims, self.losses, strict=True):
            loss.normalised = self.normalised
            loss.prepare(size, seed)
        if self._own_features:
            self._widths = [part.shape[1] for part in self._features(torch.zeros(1, hidden_size), PASSAGE)]

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        """Return the vectors (b, d). If L has features of its own, return the features of all sizes, joined by columns."""
        return torch.cat(self._features(vectors, tower), dim=1) if self._own_features else vectors

    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        positive: Tensor,
        known: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of the losses of all sizes, a scalar. Arguments as in ``RetrievalLoss``.

        Raises:
            UserError: there is a teacher, but L does not take a teacher's scores.
        """
        taught = {} if teacher is None else {"teacher": teacher}
        if taught and not takes_teacher(self.losses[0]):
            raise UserError(f"loss: matryoshka: {type(self.losses[0]).__name__} takes no teacher; leave it out")
        total = queries.new_zeros(())
        for size, (weight, loss) in enumerate(zip(self.weights, self.losses, strict=True)):
            of_size: Tensor = loss(self._part(queries, size), self._part(passages, size), positive, known, **taught)
            total = total + weight * of_size
        return total

    def _features(self, vectors: Tensor, tower: int) -> list[Tensor]:
        return [loss.features(self._cut(vectors, dim), tower) for dim, loss in zip(self.dims, self.losses, strict=True)]

    def _part(self, features: Tensor, size: int) -> Tensor:
        """Return the part of the features that the loss of the size with index ``size`` reads."""
        if self._own_features:
            return features.split(self._widths, dim=1)[size]
        return self._cut(features, self.dims[size])

    def _cut(self, vectors: Tensor, dim: int) -> Tensor:
        cut = vectors[:, :dim]  # (b, dim)
        return nn.functional.normalize(cut, dim=-1) if self.normalised else cut


def _sizes(dims: Any) -> list[int]:
    right = isinstance(dims, Sequence) and not isinstance(dims, str) and len(dims) > 0
    if not right or any(type(dim) is not int or dim < 1 for dim in dims) or len(set(dims)) < len(dims):
        raise UserError(f"loss: matryoshka: dims is {str(dims)[:60]}; it must be whole numbers >= 1, none twice")
    return list(dims)


def _weights(weights: Any, dims: Sequence[int]) -> list[float]:
    if weights is None:
        return [1.0] * len(dims)
    right = isinstance(weights, Sequence) and not isinstance(weights, str) and len(weights) == len(dims)
    if not right or None in weights or any(fault(Weight, one) for one in weights) or not any(weights):
        raise UserError(
            f"loss: matryoshka: weights is {str(weights)[:60]}; it must be a list with a number of 0 or more for each of"
            f" the {len(dims)} dims, and at least one above 0"
        )
    return [float(one) for one in weights]
