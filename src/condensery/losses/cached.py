"""The gradient cache (``gradient_cache``; Gao and Callan 2021b, §3.3) for one's own program: any encoder, any loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate

Part = tuple[Callable[[Any], Tensor], Sequence[Any]]


def cached_backward(
    loss: Callable[..., Tensor], *parts: Part, backward: Callable[[Tensor], None] = Tensor.backward
) -> Tensor:
    """Accumulate the gradient of a loss of many vectors in the memory of one chunk, exactly, dropout included.

    This is the gradient cache of Gao and Callan 2021b (§3.3).

        loss = cached_backward(contrast, (query_encoder, query_chunks), (passage_encoder, passage_chunks))

    Args:
        loss: of the vectors of each part, in the order of the parts, (n, d) each in fp32 or wider -> scalar.
        parts: an encoder and the chunks that it reads. The encoder takes a chunk and gives its vectors (b, d); it may be
            the same in several parts. A chunk is a tensor or a sequence of length b, or a mapping (or a tokenizer's output)
            whose first entry is one.
        backward: called once a chunk with the scalar to back-propagate, such as ``self.manual_backward`` or
            ``accelerator.backward``.

    Returns:
        the loss, detached. ``.grad`` of the encoders' weights holds its gradient, added to what was there.

    Raises:
        UserError: a part has no chunk.
    """
    chunks: list[_Chunk] = []
    sizes, first = [], 0
    for tower, (_, pieces) in enumerate(parts):
        if not len(pieces):
            raise UserError(f"cached_backward: part {tower} has no chunk")
        before = first
        for piece in pieces:
            rows = len(_values(piece)[0])
            chunks.append(_Chunk(piece, tower, torch.arange(first, first + rows)))
            first += rows
        sizes.append(first - before)
    encoders = _Encoders([encode for encode, _ in parts])
    losses = backpropagate(encoders, chunks, lambda vectors: loss(*vectors.split(sizes)), backward)  # type: ignore[arg-type]
    return losses["contrast"]


@dataclass(frozen=True)
class _Chunk:
    """A chunk of a program's own, with what the cache asks of one."""

    piece: Any
    tower: int
    rows: Tensor

    @property
    def input_ids(self) -> Tensor:
        """Any tensor of the chunk: where it lies, the cache computes."""
        return next((value for value in _values(self.piece) if isinstance(value, Tensor)), self.rows)

    @property
    def tokens(self) -> int:
        """A measure of its size."""
        return self.input_ids.numel()

    def __len__(self) -> int:
        return len(self.rows)


class _Encoders:
    """The encoder of each part as one ``ChunkEncoder``."""

    def __init__(self, encoders: Sequence[Callable[[Any], Tensor]]) -> None:
        self.encoders = encoders

    def vectors(self, chunk: _Chunk) -> Tensor:
        return self.encoders[chunk.tower](chunk.piece)

    def encode(self, chunk: _Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        return self.vectors(chunk), {}


def _values(piece: Any) -> list[Any]:
    """The entries of a mapping or of a tokenizer's output; anything else is its own only entry."""
    return list(piece.values()) if hasattr(piece, "keys") else [piece]
