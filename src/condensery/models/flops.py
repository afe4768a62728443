"""Counts the floating-point operations in the matrix products of a step. This file imports no torch.

Symbols: n tokens of a row, m tokens of the row whose output states are used, d hidden size, i size of the feed-forward layer.
A product of (a, b) and (b, c) takes 2abc operations. A backward pass takes twice the operations of its forward pass.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENOUGH = 512  # a sample keeps at least this number of tokens when its number of rows is reduced
Number = TypeVar("Number", float, "NDArray[np.float64]")


@dataclass(frozen=True)
class EncoderSize:
    """The sizes of a Transformer encoder with a vocabulary, and its dropout rate, because dropout takes time as well."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    dropout: float = 0.1

    @property
    def parameters(self) -> float:
        """The number of weights, including the embeddings of 512 positions."""
        d = self.hidden
        return self.layers * (4 * d * d + 2 * d * self.intermediate) + d * (self.vocabulary + 512 + d)

    def layer(self, n: Number, m: Number) -> Number:
        """Return the operations of one layer for a row: keys and values for n tokens, everything else for m tokens."""
        d = self.hidden
        return 4 * d * d * n + (4 * d * d + 4 * d * self.intermediate) * m + 4 * d * m * n

    def projection(self, predicted: float) -> float:
        """Return the operations of the LM head for ``predicted`` tokens."""
        return 2 * predicted * self.hidden * (self.hidden + self.vocabulary)


T5_BASE = EncoderSize(12, 768, 3072, 12, 32128)  # the encoder of T5-base; its decoder has the same sizes


@dataclass(frozen=True)
class Step:
    """The work of an encoder in one training step, or, if ``trained`` is false, in one step of encoding.

    Attributes:
        encoder: sizes of the encoder.
        rows: number of texts.
        length: mean number of tokens in a text, [CLS] and [SEP] included.
        chunk_tokens: number of tokens that the encoder processes together.
        head_layers: number of further layers that read all tokens, such as the layers of a Condenser head or a decoder.
        predicted: fraction of the tokens that are predicted, the same for the encoder and each head; 0 = no MLM.
        losses: number of losses that predict each of these tokens.
        contrast: whether the loss compares all vectors of the batch. The gradient cache then encodes every chunk twice,
            except one.
        trained: whether gradients are computed.
        precision: precision of the matrix products.
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
        """The number of tokens in all rows."""
        return self.rows * self.length

    @property
    def flops(self) -> float:
        """The number of operations in the step's matrix products, padding not counted."""
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
        """Return one chunk of the step, reduced to about ``most`` operations, for timing.

        If the chunk has more operations, layers are removed first, and then rows. Enough rows remain to keep the matrix
        products large. Otherwise costs per chunk, such as the gradient of the vocabulary projection, would count too much.
        Steps that differ only slightly in length, or only in whether there is a contrastive loss, have the same sample.
        """
        length = max(16.0, 32.0 * round(self.length / 32))
        rows = max(2.0, min(self.chunk_tokens, self.tokens) // length)
        step = replace(self, rows=rows, length=length, chunk_tokens=int(rows * length) + 1, contrast=False)
        while step.flops > most and step.encoder.layers > 2:
            step = replace(step, encoder=replace(step.encoder, layers=max(2, step.encoder.layers // 2)))
        while step.flops > most and step.tokens > 2 * ENOUGH:
            step = replace(step, rows=step.rows // 2)
        return step
