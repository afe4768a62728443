"""The gradient cache (``gradient_cache``; Gao and Callan 2021b, §3.3) for encoders and losses from outside this package."""

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
    """Accumulate the exact gradient of a loss over the vectors of many chunks, with the memory that one chunk needs.

    This is the gradient cache of Gao and Callan 2021b (§3.3). The gradient is exact under dropout as well.

        loss = cached_backward(contrast, (query_encoder, query_chunks), (passage_encoder, passage_chunks))

    Args:
        loss: function that returns a scalar. Its arguments are the vectors of each part, (n, d) in fp32 or wider, in the
            order of the parts. Parts may have different d. The loss may have trainable weights, such as a learned
            temperature.
        parts: pairs of an encoder and the chunks that it reads. An encoder maps a chunk to vectors (b, d). Several parts may
            have the same encoder. A chunk is a tensor or a sequence of length b, or a mapping (such as a tokenizer's output)
            whose first value is such a tensor or sequence. A chunk is encoded only once if its vectors need no gradient,
            because they are precomputed or the encoder is frozen.
        backward: function that back-propagates a scalar, such as ``self.manual_backward`` or ``accelerator.backward``. It is
            called once per chunk, and once for the trainable weights of the loss.

    Returns:
        the loss, detached. The gradient is added to ``.grad`` of all weights, including the weights of the loss.

    Raises:
        UserError: a part has no chunk, an encoder does not return finite vectors (b, d), the loss is not a scalar, or no
            weight has a gradient.
    """
    chunks = chunks_of(parts)
    encoders = _Encoders([encode for encode, _ in parts])
    sizes = [sum(len(chunk) for chunk in chunks if chunk.tower == tower) for tower in range(len(parts))]

    def of_parts(vectors: Tensor) -> Tensor:
        found = [part[:, : encoders.widths[tower]] for tower, part in enumerate(vectors.split(sizes))]
        for tower, part in enumerate(found):
            if not part.isfinite().all():
                raise UserError(f"cached_backward: the encoder of part {tower} gives vectors that are NaN or infinite")
        return loss(*found)

    losses = backpropagate(encoders, chunks, of_parts, backward, padded=True)  # type: ignore[arg-type]
    return losses["contrast"]


@dataclass(frozen=True)
class PieceChunk:
    """Wraps a chunk from outside this package, with the attributes of ``Chunk`` that the gradient cache reads.

    Attributes:
        piece: the chunk as the caller passed it to ``cached_backward``.
        tower: the index of the (encoder, chunks) pair to which the chunk belongs.
        rows: (b,) indices of the chunk's rows, which are numbered consecutively over all parts.
    """

    piece: Any
    tower: int
    rows: Tensor

    @property
    def input_ids(self) -> Tensor:
        """The first tensor of the chunk. The gradient cache computes on this tensor's device."""
        return next((value for value in _values(self.piece) if isinstance(value, Tensor)), self.rows)

    @property
    def tokens(self) -> int:
        """The size of the chunk: the number of elements of its first tensor."""
        return self.input_ids.numel()

    def __len__(self) -> int:
        return len(self.rows)


def chunks_of(parts: Sequence[Part]) -> list[PieceChunk]:
    """Return the chunks of all parts. Their rows are numbered consecutively over all parts.

    Raises:
        UserError: there is no part, or a part has no chunk.
    """
    if not parts:
        raise UserError("cached_backward: no parts are given; give at least one tuple of an encoder and its chunks")
    chunks: list[PieceChunk] = []
    first = 0
    for tower, (_, pieces) in enumerate(parts):
        before = len(chunks)
        for piece in pieces:
            rows = _rows(piece, tower)
            chunks.append(PieceChunk(piece, tower, torch.arange(first, first + rows)))
            first += rows
        if len(chunks) == before:
            raise UserError(f"cached_backward: part {tower} has no chunk; give it one or leave the part out")
    return chunks


class _Encoders:
    """Combines the encoders of all parts into one ``ChunkEncoder``.

    Attributes:
        widths: index of a part -> number of dimensions of its vectors; set when the first chunk of the part is encoded.
    """

    def __init__(self, encoders: Sequence[Callable[[Any], Tensor]]) -> None:
        self.encoders = encoders
        self.widths: dict[int, int] = {}

    def vectors(self, chunk: PieceChunk) -> Tensor:
        vectors = self.encoders[chunk.tower](chunk.piece)
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != len(chunk):
            raise UserError(
                f"cached_backward: the encoder of part {chunk.tower} must give a tensor of shape ({len(chunk)}, d) for this"
                f" chunk, not {kind_of(vectors)}"
            )
        if not vectors.is_floating_point():
            raise UserError(f"cached_backward: the encoder of part {chunk.tower} must give floats, not {vectors.dtype}")
        width = self.widths.setdefault(chunk.tower, vectors.shape[1])
        if vectors.shape[1] != width:
            raise UserError(
                f"cached_backward: the encoder of part {chunk.tower} gives vectors of {width} dimensions for one chunk"
                f" and of {vectors.shape[1]} for another; all must have the same number"
            )
        return vectors

    def encode(self, chunk: PieceChunk) -> tuple[Tensor, dict[str, Tensor]]:
        return self.vectors(chunk), {}


def _rows(piece: Any, tower: int) -> int:
    try:
        return len(_values(piece)[0])
    except (IndexError, TypeError):
        raise UserError(
            f"cached_backward: a chunk of part {tower} must be a tensor, a sequence or a mapping of these, with one entry per"
            f" row, not {kind_of(piece)}"
        ) from None


def _values(piece: Any) -> list[Any]:
    """Return the values of a mapping or of a tokenizer's output. Any other piece is returned in a list."""
    return list(piece.values()) if hasattr(piece, "keys") else [piece]
