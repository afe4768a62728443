"""The gradient cache (``gradient_cache``; Gao and Callan 2021b, §3.3) for one's own program: any encoder, any loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate, kind_of

Part = tuple[Callable[[Any], Tensor], Sequence[Any]]


def cached_backward(
    loss: Callable[..., Tensor], *parts: Part, backward: Callable[[Tensor], None] = Tensor.backward
) -> Tensor:
    """Accumulate the gradient of a loss of many vectors in the memory of one chunk, exactly, dropout included.

    This is the gradient cache of Gao and Callan 2021b (§3.3).

        loss = cached_backward(contrast, (query_encoder, query_chunks), (passage_encoder, passage_chunks))

    Args:
        loss: of the vectors of each part, in the order of the parts, (n, d) each in fp32 or wider -> scalar. It may read
            weights of its own, such as a learned temperature. Parts may have different d.
        parts: an encoder and the chunks that it reads. The encoder takes a chunk and gives its vectors (b, d); it may be
            the same in several parts. A chunk is a tensor or a sequence of length b, or a mapping (or a tokenizer's output)
            whose first entry is one. Chunks whose vectors have no gradient, such as those of a frozen encoder or vectors
            that were computed before, are encoded once.
        backward: called once a chunk with the scalar to back-propagate, and once for the loss's own weights; such as
            ``self.manual_backward`` or ``accelerator.backward``.

    Returns:
        the loss, detached. ``.grad`` of all weights, the loss's own too, holds its gradient, added to what was there.

    Raises:
        UserError: a part has no chunk, an encoder gives something else than finite vectors (b, d), the loss is no scalar,
            or nothing has a gradient.
    """
    chunks = chunks_of(parts)
    encoders = _Encoders([encode for encode, _ in parts])
    sizes = [sum(len(chunk) for chunk in chunks if chunk.tower == tower) for tower in range(len(parts))]

    def of_parts(vectors: Tensor) -> Tensor:
        found = [part[:, : encoders.widths[tower]] for tower, part in enumerate(vectors.split(sizes))]
        for tower, part in enumerate(found):
            if not part.isfinite().all():
                raise UserError(f"cached_backward: part {tower} has vectors that are not finite; look at its encoder")
        return loss(*found)

    losses = backpropagate(encoders, chunks, of_parts, backward, padded=True)  # type: ignore[arg-type]
    return losses["contrast"]


@dataclass(frozen=True)
class PieceChunk:
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


def chunks_of(parts: Sequence[Part]) -> list[PieceChunk]:
    """The chunks of all parts, whose rows stand one behind the other. Raises ``UserError`` where a part has none."""
    if not parts:
        raise UserError("cached_backward: give a part, an encoder and its chunks")
    chunks: list[PieceChunk] = []
    first = 0
    for tower, (_, pieces) in enumerate(parts):
        before = len(chunks)
        for piece in pieces:
            rows = _rows(piece, tower)
            chunks.append(PieceChunk(piece, tower, torch.arange(first, first + rows)))
            first += rows
        if len(chunks) == before:
            raise UserError(f"cached_backward: part {tower} has no chunk")
    return chunks


class _Encoders:
    """The encoder of each part as one ``ChunkEncoder``.

    Attributes:
        widths: dimensions of the vectors of each part, once a chunk of it was encoded.
    """

    def __init__(self, encoders: Sequence[Callable[[Any], Tensor]]) -> None:
        self.encoders = encoders
        self.widths: dict[int, int] = {}

    def vectors(self, chunk: PieceChunk) -> Tensor:
        vectors = self.encoders[chunk.tower](chunk.piece)
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != len(chunk):
            raise UserError(
                f"cached_backward: the encoder of part {chunk.tower} must give vectors ({len(chunk)}, d) of this chunk,"
                f" not {kind_of(vectors)}"
            )
        if not vectors.is_floating_point():
            raise UserError(f"cached_backward: the encoder of part {chunk.tower} gives {vectors.dtype}, not floats")
        width = self.widths.setdefault(chunk.tower, vectors.shape[1])
        if vectors.shape[1] != width:
            raise UserError(
                f"cached_backward: the encoder of part {chunk.tower} gives vectors of {width} dimensions for one chunk"
                f" and of {vectors.shape[1]} for another"
            )
        return vectors

    def encode(self, chunk: PieceChunk) -> tuple[Tensor, dict[str, Tensor]]:
        return self.vectors(chunk), {}


def _rows(piece: Any, tower: int) -> int:
    try:
        return len(_values(piece)[0])
    except (IndexError, TypeError):
        raise UserError(
            f"cached_backward: a chunk of part {tower} must be a tensor, a sequence or a mapping of these, one entry a row,"
            f" not {kind_of(piece)}"
        ) from None


def _values(piece: Any) -> list[Any]:
    """The entries of a mapping or of a tokenizer's output; anything else is its own only entry."""
    return list(piece.values()) if hasattr(piece, "keys") else [piece]
