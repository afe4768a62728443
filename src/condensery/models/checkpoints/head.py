"""The weights of the layers after pooling, which are stored in the folders of sentence-transformers' modules."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from condensery.errors import UserError
from condensery.models.checkpoints.sentence_transformers import SavedLayer, layer_weights
from condensery.models.checkpoints.weights import read_tensors
from condensery.models.encoder import Encoder
from condensery.models.pooling import Normalise, head_of
from condensery.models.vectors import DenseShape


def load_head(saved: Sequence[SavedLayer | None], size: int) -> nn.Sequential:
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


def _load(layer: nn.Module, saved: SavedLayer, size: int) -> None:
    where = saved.folder / "config.json"
    if saved.shape.inputs != size:
        key = "in_features" if isinstance(saved.shape, DenseShape) else "dimension"
        raise UserError(f"{where}: {key} is {saved.shape.inputs}; its input vectors have {size} dimensions")
    weights = read_tensors(layer_weights(saved))
    wanted = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    if saved.with_encoder:
        weights = {name: value for name, value in weights.items() if name in wanted}
    if (found := {name: tuple(value.shape) for name, value in weights.items()}) != wanted:
        raise UserError(f"{layer_weights(saved)}: has the tensors {found}, but {where.name} describes {wanted}")
    layer.load_state_dict({name: value.float() for name, value in weights.items()})


def save_head(head: Iterable[nn.Module], folders: Sequence[Path]) -> None:
    """Write the weights of the layers of ``head`` into ``folders``, one folder per layer."""
    for layer, folder in zip(head, folders, strict=True):
        if not isinstance(layer, Normalise):
            weights = {name: value.detach().contiguous() for name, value in layer.state_dict().items()}
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def check_cut(encoder: Encoder, asked: int | None, where: Path | str) -> None:
    """Raise ``UserError`` if vectors have fewer than the ``asked`` dimensions, to which they should be truncated."""
    if asked is not None and asked > encoder.dimensions:
        raise UserError(f"truncate_dim: {asked} is more than the {encoder.dimensions} dimensions of vectors of {where}")
