"""The bi-encoder: s(q, p) = <f_q(q), f_p(p)>, vectors of one shared encoder or of two (Karpukhin et al. 2020)."""

import copy
from typing import Self

from torch import Tensor, nn

from condensery.models.encoder import Encoder
from condensery.models.vectors import VectorSettings
from condensery.tokens.batches import Chunk

PASSAGE, QUERY = 0, 1  # Chunk.tower


class BiEncoder(nn.Module):
    """Queries and passages to vectors.

    Attributes:
        query: the encoder of queries.
        passage: the encoder of passages; the same object where the towers are shared.
    """

    def __init__(self, query: Encoder, passage: Encoder | None = None) -> None:
        super().__init__()
        self.query = query
        self.passage = query if passage is None else passage

    @classmethod
    def from_encoder(cls, encoder: Encoder, separate: bool) -> Self:
        """Towers that begin with the weights of ``encoder``: one for both, or a copy for the queries."""
        return cls(copy.deepcopy(encoder), encoder) if separate else cls(encoder)

    @property
    def shared(self) -> bool:
        """Whether queries and passages go through the same weights."""
        return self.query is self.passage

    @property
    def settings(self) -> VectorSettings:
        """How vectors are made, and what stands before the texts; the same for both towers."""
        return self.passage.settings

    @property
    def hidden_size(self) -> int:
        """Dimensions d of a vector."""
        return self.passage.dimensions

    def vectors(self, chunk: Chunk) -> Tensor:
        """Vectors (b, d) by the tower of the chunk."""
        return (self.query if chunk.tower == QUERY else self.passage).vectors(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The vectors; a bi-encoder has no losses of a chunk's own."""
        return self.vectors(chunk), {}
