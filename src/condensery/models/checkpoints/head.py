"""The weights of the layers after pooling, which are stored in the folders of sentence-transformers' modules."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from condensery.errors import UserError
from condensery.models.checkpoints.sentence_transformers import SavedDense, dense_weights
from condensery.models.checkpoints.weights import read_tensors
from condensery.models.encoder import Encoder
from condensery.models.pooling import Dense, head_of


def load_head(saved: Sequence[SavedDense | None], size: int) -> nn.Sequential:
    """Load the layers after pooling, in fp32.

    Args:
        saved: the saved layers in order; None = a normalisation.
        size: number of dimensions of the encoder's states.

    Raises:
        UserError: weights are missing, or their shapes do not match the config files.
    """
    head = head_of([one.shape if one else None for one in saved])
    for layer, one in zip(head, saved, strict=True):
        if one is not None:
            _load(layer, one, size)
            size = one.shape.outputs
    return head


def _load(layer: nn.Module, saved: SavedDense, size: int) -> None:
    where = saved.folder / "config.json"
    if saved.shape.inputs != size:
        raise UserError(f"{where}: in_features is {saved.shape.inputs}; its input vectors have {size} dimensions")
    weights = read_tensors(dense_weights(saved.folder))
    wanted = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    if (found := {name: tuple(value.shape) for name, value in weights.items()}) != wanted:
        raise UserError(f"{dense_weights(saved.folder)}: has the tensors {found}, but {where.name} describes {wanted}")
    layer.load_state_dict({name: value.float() for name, value in weights.items()})


def save_head(head: Iterable[nn.Module], folders: Sequence[Path]) -> None:
    """Write the weights of the layers of ``head`` into ``folders``, one folder per layer."""
    for layer, folder in zip(head, folders, strict=True):
        if isinstance(layer, Dense):
            weights = {name: value.detach().contiguous() for name, value in layer.state_dict().items()}
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def check_cut(encoder: Encoder, asked: int | None, where: Path | str) -> None:
    """Raise ``UserError`` if vectors have fewer than the ``asked`` dimensions, to which they should be truncated."""
    if asked is not None and asked > encoder.dimensions:
        raise UserError(f"truncate_dim: {asked} is more than the {encoder.dimensions} dimensions of vectors of {where}")
