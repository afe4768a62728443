"""Saves and loads the models of pre-training: the backbone with its LM head, and the layers that only pre-training uses.

The layers of pre-training lie beside the backbone. ``condenser_head.safetensors`` holds the Condenser head, so that
coCondenser pre-training can start from it. ``context_decoder.safetensors`` holds the decoder of a masked auto-encoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from condensery.errors import UserError, number_of
from condensery.models.checkpoints.backbone import load_masked_language_model
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import ABOUT, read_about
from condensery.models.checkpoints.retrievers import save_model
from condensery.models.checkpoints.weights import read_tensors
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.masked_autoencoder import DecoderShape, Init, MaskedAutoEncoder
from condensery.system.files import write_json
from condensery.system.inputs import standing
from condensery.tokens.vocabulary import Vocabulary

HEAD = "condenser_head.safetensors"
DECODER = "context_decoder.safetensors"
# Files in which the papers' released code stores the layers that only pre-training uses. It calls these layers c_head.
# Condenser's code writes them into a file beside the backbone, and CoT-MAE's code into the file of the backbone.
RELEASED_HEAD = ("model.pt",)
RELEASED_DECODER = ("model.safetensors", "pytorch_model.bin")
_C_HEAD = "c_head."


def save_pretraining_model(
    model: Condenser | MaskedAutoEncoder, folder: Path, tokenizer: Path | str, length: int
) -> None:
    """Save the backbone with its MLM head as a checkpoint, and the Condenser head or the decoder in the same folder."""
    layers, file = (model.head, HEAD) if isinstance(model, Condenser) else (model.decoder, DECODER)
    save_model(model.language_model, folder, tokenizer, length)
    if layers:
        save_file({name: value.contiguous() for name, value in layers.state_dict().items()}, folder / file)
    about = {"shape": asdict(model.shape), "towers": "shared", "query_length": length, "passage_length": length}
    write_json(folder / ABOUT, about)


def load_condenser(
    source: Path | str,
    vocabulary: Vocabulary,
    head_layers: int,
    skip_from: int | None,
    late_mlm: bool,
    dropout: float | None,
    revision: str | None = None,
    new_head: bool = False,
) -> Condenser:
    """Load a Condenser from a checkpoint: backbone, MLM head, and the Condenser head if the folder has one.

    The Condenser head is read from this project's file, or from ``model.pt``, which the papers' released code writes. If
    neither file exists, the head is randomly initialised, and a line that says so is printed.

    Args:
        source: folder or hub name of a checkpoint, from this project or elsewhere.
        vocabulary: vocabulary of the tokens that the model will read.
        head_layers, skip_from, late_mlm: as in ``CondenserShape``; ``skip_from`` None = half of the backbone's layers.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        revision: commit, tag or branch on the hub.
        new_head: whether the head is randomly initialised even if the folder has one.

    Raises:
        UserError: the checkpoint cannot be loaded, or the shape of its head differs from the requested shape.
    """
    folder = checkpoint_folder(source, revision, more=RELEASED_HEAD)
    language_model = load_masked_language_model(folder, vocabulary, dropout=dropout)
    model = Condenser(language_model, condenser_shape(language_model, head_layers, skip_from, late_mlm))
    if not new_head:
        told = "Condenser head", "set head_layers", RELEASED_HEAD, "head_layers"
        model.layers_loaded = _load_layers(model.head, folder / HEAD, source, *told)
    return model


def load_masked_autoencoder(
    source: Path | str,
    vocabulary: Vocabulary,
    shape: DecoderShape,
    init: Init,
    dropout: float | None,
    revision: str | None = None,
) -> MaskedAutoEncoder:
    """Load a masked auto-encoder from a checkpoint: backbone, MLM head, and the decoder if the folder has one.

    Args:
        source, vocabulary, dropout, revision: as in ``load_condenser``.
        shape: shape of the decoder.
        init: initial weights of the decoder if the folder has no decoder, as in ``MaskedAutoEncoder``.

    Raises:
        UserError: the checkpoint cannot be loaded, or the shape of its decoder differs from the requested shape.
    """
    folder = checkpoint_folder(source, revision)
    model = MaskedAutoEncoder(load_masked_language_model(folder, vocabulary, dropout=dropout), shape, init)
    released = RELEASED_DECODER if shape.kind == "masked" else ()
    told = "decoder", "set the decoder's kind and layers", released, "layers"
    model.layers_loaded = _load_layers(model.decoder, folder / DECODER, source, *told, kind=shape.kind)
    return model


def _load_layers(
    new: nn.ModuleList,
    file: Path,
    source: Path | str,
    what: str,
    advice: str,
    released: Sequence[str],
    layers: str,
    **needed: str,
) -> bool:
    """Load layers that ``save_pretraining_model`` or the papers' released code saved, or print that the layers are new.

    Args:
        new: the layers to load into.
        file: the file of the layers in a checkpoint of this project.
        source: folder or hub name that the user gave; used in messages.
        what: name of the layers in messages.
        advice: advice that ends the message about a different shape.
        released: names of the files in which the papers' released code stores such layers.
        layers: key of the saved shape whose value is the number of layers.
        needed: further values that the saved shape must have, by key.

    Returns:
        whether the layers were loaded.

    Raises:
        UserError: the shape of the saved layers differs, or the file of the layers is missing.
    """
    if not new:
        return False
    shape = read_about(file.parent).get("shape", {}) if (file.parent / ABOUT).exists() else {}
    if not standing(file):
        if shape.get(layers):
            raise UserError(f"{file}: no such file, but {ABOUT} describes a {what} ({shape}); copy it too")
        there = [file.parent / name for name in released if standing(file.parent / name)]
        held = [(one, read_tensors(one, _C_HEAD)) for one in there]
        file, weights = next(((one, stored) for one, stored in held if stored), (file, {}))
        if not weights:
            print(f"{source}: has no {what}; a random one of {number_of(len(new), 'layers')} is used", flush=True)
            return False
        print(f"{source}: the {what} of {number_of(_depth(weights), 'layers')} is read from {file.name}", flush=True)
        shape = needed
    else:
        weights = read_tensors(file)
    try:
        if not needed.items() <= shape.items():
            raise RuntimeError
        new.load_state_dict(weights)
    except RuntimeError:
        depth = number_of(_depth(weights), "layers")
        where = f"in the stage that made it ({shape})" if shape != needed else f"in this file ({depth})"
        raise UserError(f"{file}: holds a {what} of another shape; {advice} as {where}") from None
    return True


def _depth(weights: Mapping[str, Tensor]) -> int:
    """Return the number of layers to which these tensors belong, according to the tensors' names."""
    return len({name.partition(".")[0] for name in weights})
