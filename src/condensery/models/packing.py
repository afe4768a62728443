"""Real tokens one behind the other where every token is for itself, rows of a rectangle where they attend to each other.

Most of a transformer (projections, feed-forward, normalisation, dropout) treats each token alone; padding costs nothing
there when it is left out. Notation: b rows of a chunk, t its width, n packed tokens, d hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condensery.models.varlen import Segments, have_kernels
from condensery.tokens.batches import Chunk

# on a CPU packed tokens come in multiples of this, so that chunks share the shapes of their matrix products; it costs a
# few tokens of padding
_MULTIPLE = 32


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return states.new_zeros((size, states.shape[1])).index_copy_(0, places, states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(states)
        return states.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros((ctx.size, gradient.shape[1])).index_copy_(0, places, gradient), None


@dataclass(frozen=True)
class Packing:
    """Where packed states stand in a rectangle.

    Attributes:
        rows: b.
        width: of the rectangle.
        places: (n,) distinct, ascending positions in the flattened (b * width); None = all of them.
        padding: (b, 1, 1, width) True at real tokens; None where all are, or where nobody asks.
        segments: the rows of the packed states, each with one at least; None where they are not told, as on a CPU.
        positions: (n,) where each of the packed states stands in its row of the chunk.
    """

    rows: int
    width: int
    positions: Tensor
    places: Tensor | None = None
    padding: Tensor | None = None
    segments: Segments | None = None

    def pad(self, states: Tensor) -> Tensor:
        """(n, d) -> (b, width, d), zeros where nothing stands."""
        if self.places is not None:
            states = _Pad.apply(states, self.places, self.rows * self.width)
        return states.view(self.rows, self.width, states.shape[1])

    def unpad(self, states: Tensor) -> Tensor:
        """(b, width, d) -> (n, d)."""
        flat = states.reshape(self.rows * self.width, states.shape[2])
        return flat if self.places is None else _Unpad.apply(flat, self.places)


@dataclass(frozen=True)
class LayerStates:
    """States that are read from a layer.

    Attributes:
        index: (k,) which of the packed tokens.
        packing: how they stand as queries of their rows, m a row.
        visible: (b, 1, m, t) the keys that each of them attends to; None = what the layer's other queries see.
        states: (k, d) what asks in place of the tokens' own states; None = these.
    """

    index: Tensor
    packing: Packing
    visible: Tensor | None = None
    states: Tensor | None = None


class PackedLayout:
    """How a chunk goes through the layers.

    Attributes:
        input_ids, positions: (n,) the packed tokens and where each stands in its row.
        types: (n,) which text of its row each is of, 0 or 1; None where every row is one text.
        tokens: how they stand in the (b, t) of the chunk; without padding where the rows have one length.
        cls: the first token of each row, to be read.
        masked: the masked tokens in the chunk's order, to be read; None where the chunk does not say which they are.
    """

    def __init__(self, chunk: Chunk) -> None:
        b, t = chunk.input_ids.shape
        device = chunk.input_ids.device
        real = chunk.attention_mask
        whole = int(chunk.lengths.min()) == t
        kernels = not whole and have_kernels(device)
        places = None if whole else _places(real.flatten(), 1 if kernels else _MULTIPLE)
        segments = _segments(chunk.lengths, t) if kernels else None
        every = torch.arange(b * t, device=device) if places is None else places
        self.input_ids = chunk.input_ids.flatten()[every]
        self.positions = every % t
        self.tokens = Packing(b, t, self.positions, places, None if whole else real[:, None, None, :], segments)
        self.types = None
        if chunk.second is not None:
            row = torch.div(every, t, rounding_mode="floor")
            self.types = (self.positions >= chunk.second[row]).long()

        self._one_each = _segments(torch.ones_like(chunk.lengths), 1) if kernels else None
        self.cls = self.at(chunk.lengths.new_zeros(b))
        self.masked = None
        if chunk.masked is not None:
            rows = torch.div(chunk.masked, t, rounding_mode="floor")  # ascending
            counts = torch.bincount(rows, minlength=b)
            column = torch.arange(len(rows), device=device) - (counts.cumsum(0) - counts)[rows]
            fewest, width = torch.stack(counts.aminmax()).tolist()
            asking = _segments(counts, width) if kernels and fewest else None
            masked = Packing(b, width, chunk.masked - rows * t, rows * width + column, segments=asking)
            self.masked = LayerStates(self._packed(chunk.masked), masked)

    def at(self, positions: Tensor) -> LayerStates:
        """The token at a position (b,) of each row, to be read."""
        b, t = self.tokens.rows, self.tokens.width
        flat = torch.arange(b, device=positions.device) * t + positions
        return LayerStates(self._packed(flat), Packing(b, 1, positions, segments=self._one_each))

    def _packed(self, flat: Tensor) -> Tensor:
        """Where positions of the flattened (b * t) stand among the packed tokens."""
        return flat if self.tokens.places is None else torch.searchsorted(self.tokens.places, flat)


def _segments(lengths: Tensor, longest: int) -> Segments:
    """Rows of these lengths (b,)."""
    return Segments(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), longest)


def _places(real: Tensor, multiple: int) -> Tensor | None:
    """The positions that are packed, ascending: the real ones, and padding up to a multiple; None = all."""
    places = real.nonzero()[:, 0]
    count = min(-(-len(places) // multiple) * multiple, len(real))
    if count == len(real):
        return None
    spare = (~real).nonzero()[: count - len(places), 0]
    return torch.cat([places, spare]).sort().values
