"""Checkpoints: what we save is a Hugging Face folder and a sentence-transformers folder at once.

``AutoModel.from_pretrained(folder)`` and ``SentenceTransformer(folder)`` both load the retriever. Beside it may lie
``condenser_head.safetensors`` (the Condenser head, so that coCondenser can start from it) or
``context_decoder.safetensors`` (an auto-encoder's decoder), and for separate towers ``query_encoder/`` (the folder
itself holds the passage encoder). ``condensery.json`` says what the folder is.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, PreTrainedModel

from condensery.errors import UserError
from condensery.models.about import ABOUT, QUERY_ENCODER, read_about, two_towers
from condensery.models.backbone import (
    OF_ENCODERS,
    check_words,
    checkpoint_config,
    load_masked_language_model,
    masked_language_model,
)
from condensery.models.biencoder import BiEncoder
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.config import BackboneConfig
from condensery.models.encoder import Encoder
from condensery.models.loading import load_weights, quiet, readable
from condensery.models.masked_autoencoder import DecoderShape, Init, MaskedAutoEncoder
from condensery.models.sentence_transformers import check_modules, longest_input, write_modules
from condensery.system.files import check_file, expanded, write_json
from condensery.system.inputs import standing
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

HEAD = "condenser_head.safetensors"
DECODER = "context_decoder.safetensors"


@dataclass(frozen=True)
class SavedRetriever:
    """A retriever as it was saved: its towers and the longest inputs that it was trained with, in tokens."""

    model: BiEncoder
    query_length: int
    passage_length: int


def save_condenser(model: Condenser, folder: Path, tokenizer: Path | str, length: int) -> None:
    """Save the backbone with its MLM head as a checkpoint, and the Condenser head beside it."""
    _save_pretrained(model, model.head, folder / HEAD, tokenizer, length)


def load_condenser(
    source: Path | str,
    vocabulary: Vocabulary,
    head_layers: int,
    skip_from: int | None,
    late_mlm: bool,
    dropout: float | None,
    revision: str | None = None,
) -> Condenser:
    """A Condenser that starts from a checkpoint: backbone, MLM head, and the Condenser head where it lies beside them.

    Args:
        source: folder, ours or not, or hub name.
        vocabulary: of the tokens that it will read.
        head_layers, skip_from, late_mlm: see ``CondenserShape``; ``skip_from`` None = half of the backbone's layers.
        dropout: of hidden states and attention; None = as the checkpoint says.
        revision: commit, tag or branch on the hub.

    Raises:
        UserError: no checkpoint can be loaded, or its head is of another shape than the one asked for.
    """
    language_model = load_masked_language_model(source, vocabulary, revision, dropout)
    model = Condenser(language_model, condenser_shape(language_model, head_layers, skip_from, late_mlm))
    _load_layers(model.head, Path(source) / HEAD, "Condenser head", "set head_layers", layers="head_layers")
    return model


def save_masked_autoencoder(model: MaskedAutoEncoder, folder: Path, tokenizer: Path | str, length: int) -> None:
    """Save the backbone with its MLM head as a checkpoint, and the decoder beside it."""
    _save_pretrained(model, model.decoder, folder / DECODER, tokenizer, length)


def load_masked_autoencoder(
    source: Path | str,
    vocabulary: Vocabulary,
    shape: DecoderShape,
    init: Init,
    dropout: float | None,
    revision: str | None = None,
) -> MaskedAutoEncoder:
    """An auto-encoder that starts from a checkpoint: backbone, MLM head, and the decoder where it lies beside them.

    Args:
        source, vocabulary, dropout, revision: see ``load_condenser``.
        shape: of the decoder.
        init: its weights where none lie beside the checkpoint, see ``MaskedAutoEncoder``.

    Raises:
        UserError: no checkpoint can be loaded, or its decoder is of another shape than the one asked for.
    """
    language_model = load_masked_language_model(source, vocabulary, revision, dropout)
    model = MaskedAutoEncoder(language_model, shape, init)
    file, advice = Path(source) / DECODER, "set its kind and its layers"
    _load_layers(model.decoder, file, "decoder", advice, layers="layers", kind=shape.kind)
    return model


def save_retriever(retriever: SavedRetriever, folder: Path, tokenizer: Path | str) -> None:
    """Save a retriever; with separate towers the folder is the passage encoder and ``query_encoder/`` the other."""
    model = retriever.model
    _save_model(model.passage.model, folder, tokenizer, retriever.passage_length)
    if not model.shared:
        _save_model(model.query.model, folder / QUERY_ENCODER, tokenizer, retriever.query_length)
    about = {
        "towers": "shared" if model.shared else "separate",
        "query_length": retriever.query_length,
        "passage_length": retriever.passage_length,
    }
    write_json(folder / ABOUT, about)


def load_retriever(folder: Path) -> SavedRetriever:
    """Load what ``save_retriever`` or ``save_condenser`` saved. Raises ``UserError`` where there is no such thing."""
    about = read_about(folder, "query_length", "passage_length")
    return SavedRetriever(load_biencoder(folder), about["query_length"], about["passage_length"])


def load_biencoder(folder: Path, separate: bool | None = None, dropout: float | None = None) -> BiEncoder:
    """Load a retriever from any checkpoint folder of the BERT family, ours or not.

    Args:
        folder: the checkpoint.
        separate: two towers, both starting from the folder unless it has two; None = as the folder says.
        dropout: of hidden states and attention; None = as the checkpoint says.
    """
    query = folder / QUERY_ENCODER
    two = two_towers(folder)
    passage_encoder = load_encoder(folder, dropout)
    if not (two if separate is None else separate):
        return BiEncoder(passage_encoder)
    return BiEncoder(load_encoder(query if two else folder, dropout), passage_encoder)


def load_towers(source: Path | str, separate: bool, dropout: float | None = None) -> BiEncoder:
    """Towers that are to be trained: from a checkpoint folder of the BERT family, ours or not, or a hub name.

    Args:
        source: the checkpoint.
        separate, dropout: see ``load_biencoder``.
    """
    folder = expanded(source)
    if folder.is_dir():
        return load_biencoder(folder, separate, dropout)
    return BiEncoder.from_encoder(load_encoder(str(source), dropout), separate)


def load_any_retriever(source: Path | str) -> tuple[BiEncoder, tuple[int | None, int | None]]:
    """A retriever that was trained here or elsewhere, and the lengths of queries and passages that it says, if any.

    Args:
        source: folder, or hub name of an encoder of the BERT family.

    Raises:
        UserError: nothing can be loaded, or the folder is one of sentence-transformers that pools or compares otherwise.
    """
    folder = expanded(source)
    if not folder.is_dir():
        return BiEncoder(load_encoder(str(source))), (None, None)
    if (folder / ABOUT).exists():
        found = load_retriever(folder)
        return found.model, (found.query_length, found.passage_length)
    check_modules(folder)
    length = longest_input(folder)
    return load_biencoder(folder), (length, length)


def backbone_encoder(config: BackboneConfig, vocabulary: Vocabulary, seed: int) -> Encoder:
    """The encoder of a backbone, without any head: from scratch by ``seed``, or as its checkpoint says.

    Raises ``UserError`` where the checkpoint cannot be had, is not of the BERT family, or does not fit the tokenizer.
    """
    if config.name is None:
        language_model: Any = masked_language_model(config, vocabulary, seed)
        return Encoder(language_model.base_model)
    encoder = load_encoder(config.name, config.dropout, config.revision)
    check_words(encoder.model, config.name, vocabulary)
    return encoder


def load_encoder(source: Path | str, dropout: float | None = None, revision: str | None = None) -> Encoder:
    """The backbone of a checkpoint, a folder or a hub name, in fp32, without its pooling layer.

    Raises ``UserError`` where no checkpoint can be loaded, or its tensors are not those of its config.
    """
    with readable(source):
        model = load_weights(
            AutoModel,
            source,
            checkpoint_config(source, revision, dropout),
            OF_ENCODERS,
            revision,
            trust_remote_code=False,
            add_pooling_layer=False,
            dtype=torch.float32,
            attn_implementation="eager",
        )
    return Encoder(model)


def _save_pretrained(
    model: Condenser | MaskedAutoEncoder, layers: nn.ModuleList, file: Path, tokenizer: Path | str, length: int
) -> None:
    """Save a checkpoint in the folder of ``file``, and the layers for pre-training alone, if any, as ``file``."""
    _save_model(model.language_model, file.parent, tokenizer, length)
    if layers:
        save_file({name: value.contiguous() for name, value in layers.state_dict().items()}, file)
    about = {"shape": asdict(model.shape), "towers": "shared", "query_length": length, "passage_length": length}
    write_json(file.parent / ABOUT, about)


def _load_layers(new: nn.ModuleList, file: Path, what: str, advice: str, *, layers: str, **needed: str) -> None:
    """Load what ``_save_pretrained`` saved as ``file``, if it did; otherwise say that the layers are new.

    Args:
        new: the layers that are wanted.
        file: beside the checkpoint.
        what: they are called in messages.
        advice: what to do where their shape is another.
        layers: the entry of the saved shape that says how many there are.
        needed: entries of the saved shape that must be these.

    Raises:
        UserError: the shape is another, or the file is gone.
    """
    if not new:
        return
    shape = read_about(file.parent).get("shape", {}) if (file.parent / ABOUT).exists() else {}
    if not standing(file):
        if shape.get(layers):
            raise UserError(f"{file}: no such file, but {ABOUT} beside it tells of a {what} ({shape})")
        print(f"{file.parent}: new, with random weights: a {what} of {len(new)} layers", flush=True)
        return
    check_file(file)
    with readable(file):
        weights = load_file(file)
    try:
        if not needed.items() <= shape.items():
            raise RuntimeError
        new.load_state_dict(weights)
    except RuntimeError:
        raise UserError(f"{file}: a {what} of another shape; {advice} as in the stage that made it ({shape})") from None


def _save_model(model: PreTrainedModel, folder: Path, tokenizer: Path | str, max_length: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder)
    load_tokenizer(tokenizer).save_pretrained(folder)
    write_modules(folder, model.config.hidden_size, max_length)
