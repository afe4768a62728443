"""Masked language modelling (Devlin et al. 2019): cross-entropy at the masked tokens and nowhere else."""

from torch import Tensor

from condensery.models.condenser import Condenser
from condensery.tokens.batches import Chunk


class MaskedPrediction:
    """A ``Condenser`` as the gradient cache sees it: CLS vectors, and MLM losses that add up to the batch's mean.

    The mean of each MLM loss is over the masked tokens of the whole batch, whatever the chunking (C eq. 11, CO eq. 7).
    """

    def __init__(self, model: Condenser, masked: int, weight: float = 1.0) -> None:
        """``masked``: number of masked tokens in the batch; ``weight`` multiplies the MLM losses (1 in the papers)."""
        self.model = model
        self.scale = weight / max(masked, 1)

    def vectors(self, chunk: Chunk) -> Tensor:
        """Late CLS vectors (b, d), the backbone alone."""
        return self.model.vectors(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Late CLS vectors (b, d) and the chunk's share of each MLM loss."""
        vectors, losses = self.model.predict(chunk)
        return vectors, {name: loss.sum() * self.scale for name, loss in losses.items()}
