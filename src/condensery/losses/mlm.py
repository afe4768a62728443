"""Masked language modelling (Devlin et al. 2019): cross-entropy at the masked tokens only."""

from collections.abc import Mapping

from torch import Tensor

from condensery.models.pretraining import PretrainingModel
from condensery.tokens.batches import Chunk


class MaskedPrediction:
    """Wraps a pre-training model so that the gradient cache can use it as a ``ChunkEncoder``.

    For each chunk it computes the CLS vectors and the chunk's contribution to every loss. The contributions of all chunks
    add up to the mean of the loss over all predicted tokens of the batch. So the loss does not depend on how the batch is
    split into chunks (Gao and Callan 2021a, eq. 11; 2021b, eq. 7).
    """

    def __init__(
        self, model: PretrainingModel, masked: float | Mapping[str, float], weight: float | Mapping[str, float] = 1.0
    ) -> None:
        """Wrap a model. ``masked`` and ``weight`` are one number for all losses, or a mapping from loss name to number.

        Args:
            model: model that computes the losses.
            masked: number of predicted tokens in the batch; with several processes, the mean number per process.
            weight: factor by which a loss is multiplied (1 in the papers).
        """
        self.model = model
        self.masked, self.weight = masked, weight

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the late CLS vectors (b, d), computed by the backbone alone."""
        return self.model.vectors(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the late CLS vectors (b, d), and the chunk's contribution to each loss, by name."""
        vectors, losses = self.model.encode(chunk)
        return vectors, {name: loss.sum() * self._scale(name) for name, loss in losses.items()}

    def _scale(self, name: str) -> float:
        return _of(self.weight, name) / (_of(self.masked, name) or 1)


def _of(number: float | Mapping[str, float], name: str) -> float:
    return number[name] if isinstance(number, Mapping) else number
