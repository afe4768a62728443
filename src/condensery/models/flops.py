"""How many floating-point operations the matrix products of a step take. Imports no torch.

Letters: n tokens of a row, m of them whose states are read afterwards; d the size of a state, i of the feed-forward layer.
A product of (a, b) and (b, c) takes 2abc operations; a backward pass takes twice what the forward pass took.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENOUGH = 512  # tokens of a sample
Number = TypeVar("Number", float, "NDArray[np.float64]")


@dataclass(frozen=True)
class EncoderSize:
    """The sizes of a Transformer encoder with a vocabulary, and its dropout, which takes time too."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    dropout: float = 0.1

    @property
    def parameters(self) -> float:
        """Weights, those of 512 positions included."""
        d = self.hidden
        return self.layers * (4 * d * d + 2 * d * self.intermediate) + d * (self.vocabulary + 512 + d)

    def layer(self, n: Number, m: Number) -> Number:
        """Operations of one layer for a row: keys and values of all tokens, the rest where the result is read."""
        d = self.hidden
        return 4 * d * d * n + (4 * d * d + 4 * d * self.intermediate) * m + 4 * d * m * n

    def projection(self, predicted: float) -> float:
        """Operations of the LM head for so many predicted tokens."""
        return 2 * predicted * self.hidden * (self.hidden + self.vocabulary)


T5_BASE = EncoderSize(12, 768, 3072, 12, 32128)  # its encoder, and its decoder


@dataclass(frozen=True)
class Step:
    """The texts that an encoder reads together: in a step of training, or (``trained`` false) for their vectors.

    Attributes:
        encoder: its sizes.
        rows: texts.
        length: tokens of each, the mean, [CLS] and [SEP] included.
        chunk_tokens: that go through it together.
        head_layers: further layers that read all tokens: a Condenser head, a decoder.
        predicted: share of the tokens that are predicted, by the encoder and by each head alike; 0 = there is no MLM.
        losses: how many times each of these is predicted.
        contrast: the loss compares all vectors, so that all chunks but one are encoded twice.
        trained: whether gradients are wanted.
        precision: of the products.
    """

    encoder: EncoderSize
    rows: float
    length: float
    chunk_tokens: int
    head_layers: int = 0
    predicted: float = 0.0
    losses: int = 1
    contrast: bool = False
    trained: bool = True
    precision: str = "fp32"

    @property
    def tokens(self) -> float:
        """Of all rows."""
        return self.rows * self.length

    @property
    def flops(self) -> float:
        """Operations of its matrix products, none on padding."""
        size, n = self.encoder, self.length
        vectors = (size.layers - 1) * size.layer(n, n) + size.layer(n, 1.0)
        if not self.trained:
            return self.rows * vectors
        twice = max(0.0, 1 - self.chunk_tokens / self.tokens) if self.contrast else 0.0
        read = self.predicted * n
        trained = (size.layers - 1) * size.layer(n, n) + size.layer(n, 1 + read)
        if self.head_layers:
            trained += (self.head_layers - 1) * size.layer(n, n) + size.layer(n, read)
        return self.rows * (twice * vectors + 3 * (trained + size.projection(self.losses * read)))

    def sample(self, most: float) -> "Step":
        """One chunk of such a step, with fewer layers and then fewer rows where it has more than about ``most`` operations.

        Of rows as many are left as keep the products large: what is written once a chunk, as the gradient of the vocabulary,
        is not to weigh more than it does. Lengths that differ by a little, and a contrast, make no other sample.
        """
        length = max(16.0, 32.0 * round(self.length / 32))
        rows = max(2.0, min(self.chunk_tokens, self.tokens) // length)
        step = replace(self, rows=rows, length=length, chunk_tokens=int(rows * length) + 1, contrast=False)
        while step.flops > most and step.encoder.layers > 2:
            step = replace(step, encoder=replace(step.encoder, layers=max(2, step.encoder.layers // 2)))
        while step.flops > most and step.tokens > 2 * ENOUGH:
            step = replace(step, rows=step.rows // 2)
        return step
