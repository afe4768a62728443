"""The bi-encoder: s(q, p) = <f_q(q), f_p(p)>, with one shared encoder or two encoders (Karpukhin et al. 2020)."""

import copy
from typing import Self

from torch import Tensor, nn

from condensery.models.encoder import Encoder
from condensery.models.vectors import VectorSettings
from condensery.tokens.batches import Chunk

PASSAGE, QUERY = 0, 1  # values of Chunk.tower


class BiEncoder(nn.Module):
    """A bi-encoder, which maps queries and passages to vectors (Karpukhin et al. 2020).

    Attributes:
        query: the encoder of queries.
        passage: the encoder of passages; the same object as ``query`` if the towers are shared.
    """

    def __init__(self, query: Encoder, passage: Encoder | None = None) -> None:
        super().__init__()
        self.query = query
        self.passage = query if passage is None else passage

    @classmethod
    def from_encoder(cls, encoder: Encoder, separate: bool) -> Self:
        """Return a bi-encoder with the weights of ``encoder``; if ``separate``, the query tower is a copy."""
        return cls(copy.deepcopy(encoder), encoder) if separate else cls(encoder)

    @property
    def shared(self) -> bool:
        """Whether one encoder encodes queries and passages."""
        return self.query is self.passage

    @property
    def settings(self) -> VectorSettings:
        """The settings of vectors and text prefixes, the same for both towers."""
        return self.passage.settings

    @property
    def hidden_size(self) -> int:
        """The number of dimensions d of a vector."""
        return self.passage.dimensions

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return vectors (b, d), computed by the encoder that the chunk's ``tower`` names."""
        return (self.query if chunk.tower == QUERY else self.passage).vectors(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return vectors (b, d) and no losses, because a bi-encoder has no loss per chunk."""
        return self.vectors(chunk), {}
