"""From the states of a row's tokens to one vector: poolings, and the layers that may stand behind them.

All of them are those of sentence-transformers, and give its numbers.

Notation: b rows of a chunk, t its width, d hidden size.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from condensery.models.vectors import DenseShape, Pooling, VectorSettings


def pool(states: Tensor, real: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """One vector of the states of each row, (b, d), by a pooling that reads them all; see ``VectorSettings``.

    Args:
        states: (b, t, d) after the last layer.
        real: (b, t) True at tokens, False at padding.
        lengths: (b,) tokens of a row.
    """
    if pooling == "max":
        return states.masked_fill(~real[..., None], -torch.inf).max(dim=1).values
    states = torch.where(real[..., None], states, states.new_zeros(()))
    if pooling == "mean":
        return states.sum(dim=1) / lengths[:, None]
    wide = torch.promote_types(states.dtype, torch.float32)  # bf16 knows no whole numbers above 256
    if pooling == "mean_sqrt_len":
        return (states.sum(dim=1) / lengths.to(wide).sqrt()[:, None]).to(states.dtype)
    weights = (
        torch.arange(1, states.shape[1] + 1, device=states.device, dtype=wide)[:, None] * real[..., None]
    )  # (b, t, 1)
    return ((states * weights).sum(dim=1) / weights.sum(dim=1)).to(states.dtype)


class Dense(nn.Module):
    """A linear layer and an activation behind the pooled states. Its weights have sentence-transformers' names."""

    def __init__(self, shape: DenseShape) -> None:
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(shape.inputs, shape.outputs, bias=shape.bias)
        self.activation: nn.Module = getattr(nn, shape.activation)()

    def forward(self, vectors: Tensor) -> Tensor:
        """(b, inputs) -> (b, outputs)."""
        activated: Tensor = self.activation(self.linear(vectors))
        return activated


class Normalise(nn.Module):
    """Vectors divided by their lengths, where other layers, or a cut, come behind."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(b, d) -> (b, d)."""
        return nn.functional.normalize(vectors, dim=-1)


def head_of(shapes: Sequence[DenseShape | None]) -> nn.Sequential:
    """The layers behind pooling, with random weights; None = ``Normalise``."""
    return nn.Sequential(*(Normalise() if shape is None else Dense(shape) for shape in shapes))


def shapes_of(head: Iterable[nn.Module]) -> list[DenseShape | None]:
    """What ``head_of`` makes such layers of."""
    return [layer.shape if isinstance(layer, Dense) else None for layer in head]


def dimensions(hidden: int, head: Iterable[nn.Module], settings: VectorSettings) -> int:
    """Numbers of a vector that is made of states of size ``hidden``."""
    for shape in shapes_of(head):
        hidden = hidden if shape is None else shape.outputs
    return min(hidden, settings.truncate_dim or hidden)
