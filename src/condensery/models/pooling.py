"""Poolings, which reduce the token states of a row to one vector, and the layers that may follow a pooling.

All poolings and layers exist in sentence-transformers and compute the same values there.

Symbols in shapes: b rows of a chunk, t width of the chunk, d hidden size.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from condensery.models.vectors import DenseShape, LayerShape, NormShape, Pooling, VectorSettings


def pool(states: Tensor, real: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """Pool the states of each row into one vector, (b, d), by a pooling that reads all states of the row.

    Args:
        states: (b, t, d) states after the last layer.
        real: (b, t) bool, True at tokens, False at padding.
        lengths: (b,) number of tokens in each row.
        pooling: ``max``, ``mean``, ``mean_sqrt_len`` or ``weighted_mean``, as in ``VectorSettings``.
    """
    if pooling == "max":
        return states.masked_fill(~real[..., None], -torch.inf).max(dim=1).values
    states = torch.where(real[..., None], states, states.new_zeros(()))  # (b, t, d)
    if pooling == "mean":
        return states.sum(dim=1) / lengths[:, None]
    wide = torch.promote_types(states.dtype, torch.float32)  # bf16 cannot represent all integers above 256
    if pooling == "mean_sqrt_len":
        return (states.sum(dim=1) / lengths.to(wide).sqrt()[:, None]).to(states.dtype)
    places = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=wide)  # (t,)
    weights = places[:, None] * real[..., None]  # (b, t, 1)
    return ((states * weights).sum(dim=1) / weights.sum(dim=1)).to(states.dtype)


class Dense(nn.Module):
    """A linear layer with an activation, applied after pooling. Its weights have sentence-transformers' names."""

    def __init__(self, shape: DenseShape) -> None:
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(shape.inputs, shape.outputs, bias=shape.bias)
        self.activation: nn.Module = getattr(nn, shape.activation)()

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (b, inputs) to (b, outputs)."""
        return self.activation(self.linear(vectors))


class LayerNorm(nn.Module):
    """Layer normalisation of vectors (ANCE), applied after pooling. Its weights have sentence-transformers' names."""

    def __init__(self, shape: NormShape) -> None:
        super().__init__()
        self.shape = shape
        self.norm = nn.LayerNorm(shape.inputs)

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise vectors (b, d). The shape is kept."""
        return self.norm(vectors)


class Normalise(nn.Module):
    """L2-normalises vectors before further layers or before truncation."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise vectors (b, d). The shape is kept."""
        return nn.functional.normalize(vectors, dim=-1)


_LAYERS = {DenseShape: Dense, NormShape: LayerNorm}


def head_of(shapes: Sequence[LayerShape | None]) -> nn.Sequential:
    """Create the layers after pooling, randomly initialised; None = ``Normalise``."""
    return nn.Sequential(*(Normalise() if shape is None else _LAYERS[type(shape)](shape) for shape in shapes))


def shapes_of(head: Iterable[nn.Module]) -> list[LayerShape | None]:
    """Return the shapes of layers, as ``head_of`` takes them."""
    return [layer.shape if isinstance(layer, Dense | LayerNorm) else None for layer in head]


def dimensions(hidden: int, head: Iterable[nn.Module], settings: VectorSettings) -> int:
    """Return the number of dimensions of a vector that is computed from states of size ``hidden``."""
    for shape in shapes_of(head):
        hidden = hidden if shape is None else shape.outputs
    return min(hidden, settings.truncate_dim or hidden)
