"""Packing: real tokens are concatenated for token-wise computations, and padded to rows for attention.

Most of a transformer (projections, feed-forward, normalisation, dropout) is computed token by token. In these parts padding
is left out and costs nothing.

Symbols in shapes: b rows of a chunk, t width of the chunk, n packed tokens, d hidden size.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condensery.models.linear import ROWS
from condensery.models.varlen import Segments, have_kernels
from condensery.tokens.batches import Chunk


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
    """The positions of packed states in a padded matrix (rows, width).

    Attributes:
        rows: number b of rows.
        width: width of the padded matrix.
        places: (n,) distinct, ascending positions in the flattened matrix (b * width); None = all positions.
        padding: (b, 1, 1, width) True at real tokens; None if all tokens are real, or if no mask is needed.
        segments: boundaries of the rows in the packed states; every row has at least one state. None = not known, as on a
            CPU.
        positions: (n,) the position of each packed state in its row of the chunk.
    """

    rows: int
    width: int
    positions: Tensor
    places: Tensor | None = None
    padding: Tensor | None = None
    segments: Segments | None = None
    _of_heads: dict[int, "Packing"] = field(default_factory=dict, repr=False, compare=False)

    def pad(self, states: Tensor) -> Tensor:
        """Pad packed states: (n, d) -> (b, width, d), zeros where there is no state."""
        if self.places is not None:
            states = _Pad.apply(states, self.places, self.rows * self.width)
        return states.view(self.rows, self.width, states.shape[1])

    def unpad(self, states: Tensor) -> Tensor:
        """Pack padded states: (b, width, d) -> (n, d)."""
        flat = states.reshape(self.rows * self.width, states.shape[2])  # (b * width, d)
        return flat if self.places is None else _Unpad.apply(flat, self.places)

    def of_heads(self, heads: int) -> "Packing":
        """Return the packing of the states of heads (n h, e) in a padded matrix (b h, width). It is computed once."""
        assert self.places is not None
        if heads not in self._of_heads:
            row, column = self.places[:, None] // self.width, self.places[:, None] % self.width  # (n, 1) each
            places = (row * heads + torch.arange(heads, device=row.device)) * self.width + column  # (n, h)
            self._of_heads[heads] = Packing(self.rows * heads, self.width, self.positions, places.flatten())
        return self._of_heads[heads]


@dataclass(frozen=True)
class LayerStates:
    """A selection of tokens whose states are read from a layer.

    Attributes:
        index: (k,) indices of the tokens that are read, among the packed tokens.
        packing: the positions of these tokens in a padded matrix of attention queries, at most m queries per row.
        visible: (b, 1, m, t) True at the keys that a query attends to; None = the ``visible`` that the layer was given.
        states: (k, d) states from which the attention queries are computed; None = the states of the tokens themselves.
    """

    index: Tensor
    packing: Packing
    visible: Tensor | None = None
    states: Tensor | None = None


class PackedLayout:
    """The packed tokens of a chunk, and the selections of tokens whose states can be read.

    Attributes:
        input_ids: (n,) ids of the packed tokens.
        positions: (n,) the position of each packed token in its row.
        types: (n,) token types: 0 for the first text of a row, 1 for the second; None if every row is a single text.
        tokens: the positions of the packed tokens in the chunk (b, t); without padding if all rows have the same length.
        cls: selection of the first token of each row.
        masked: selection of the masked tokens, in the chunk's order; None if the chunk has no masked positions.
    """

    def __init__(self, chunk: Chunk) -> None:
        b, t = chunk.input_ids.shape
        device = chunk.input_ids.device
        real = chunk.attention_mask  # (b, t)
        whole = int(chunk.lengths.min()) == t
        kernels = not whole and have_kernels(device)
        places = None if whole else _places(real.flatten(), 1 if kernels else ROWS)
        segments = _segments(chunk.lengths, t) if kernels else None
        every = torch.arange(b * t, device=device) if places is None else places  # (n,)
        self.input_ids = chunk.input_ids.flatten()[every]
        self.positions = every % t
        self.tokens = Packing(b, t, self.positions, places, None if whole else real[:, None, None, :], segments)
        self.types = None
        if chunk.second is not None:
            row = torch.div(every, t, rounding_mode="floor")  # (n,)
            self.types = (self.positions >= chunk.second[row]).long()

        self._one_each = _segments(torch.ones_like(chunk.lengths), 1) if kernels else None
        self.cls = self.at(chunk.lengths.new_zeros(b))
        self.masked = None
        if chunk.masked is not None:
            rows = torch.div(chunk.masked, t, rounding_mode="floor")  # (k,), ascending
            counts = torch.bincount(rows, minlength=b)  # (b,)
            column = torch.arange(len(rows), device=device) - (counts.cumsum(0) - counts)[rows]  # (k,)
            fewest, width = torch.stack(counts.aminmax()).tolist()
            asking = _segments(counts, width) if kernels and fewest else None
            masked = Packing(b, width, chunk.masked - rows * t, rows * width + column, segments=asking)
            self.masked = LayerStates(self._packed(chunk.masked), masked)

    def at(self, positions: Tensor) -> LayerStates:
        """Return the selection of the tokens at ``positions`` (b,), one in each row."""
        b, t = self.tokens.rows, self.tokens.width
        flat = torch.arange(b, device=positions.device) * t + positions  # (b,)
        return LayerStates(self._packed(flat), Packing(b, 1, positions, segments=self._one_each))

    def _packed(self, flat: Tensor) -> Tensor:
        """Return the indices among the packed tokens of positions in the flattened chunk (b * t)."""
        return flat if self.tokens.places is None else torch.searchsorted(self.tokens.places, flat)


def _segments(lengths: Tensor, longest: int) -> Segments:
    """Return the segments of rows with the given ``lengths`` (b,)."""
    return Segments(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), longest)


def _places(real: Tensor, multiple: int) -> Tensor | None:
    """Return the ascending positions (n,) to pack: real tokens, plus padding up to a ``multiple``; None = all positions."""
    places = real.nonzero()[:, 0]  # (real tokens,)
    count = min(-(-len(places) // multiple) * multiple, len(real))
    if count == len(real):
        return None
    spare = (~real).nonzero()[: count - len(places), 0]  # (count - real tokens,)
    return torch.cat([places, spare]).sort().values
