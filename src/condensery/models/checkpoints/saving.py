"""Checkpoints: what we save is a Hugging Face folder and a sentence-transformers folder at once.

``AutoModel.from_pretrained(folder)`` and ``SentenceTransformer(folder)`` both load the retriever. Beside it may lie
``condenser_head.safetensors`` (the Condenser head, so that coCondenser can start from it) or
``context_decoder.safetensors`` (an auto-encoder's decoder), and for separate towers ``query_encoder/`` (the folder
itself holds the passage encoder; ``SentenceTransformer`` takes each for its texts). ``condensery.json`` says what the
folder is.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.backbone import (
    DECODERS,
    OTHER_HEADS,
    check_words,
    checkpoint_config,
    load_masked_language_model,
    masked_language_model,
)
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.head import check_cut, load_head, save_head
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.loading import Allowed, load_weights, quiet, readable
from condensery.models.checkpoints.metadata import (
    ABOUT,
    QUERY_ENCODER,
    SavedTower,
    longest_inputs,
    read_about,
    saved_towers,
    vector_settings,
)
from condensery.models.checkpoints.sentence_transformers import write_modules, write_router
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.encoder import Encoder
from condensery.models.families import FAMILIES
from condensery.models.masked_autoencoder import DecoderShape, Init, MaskedAutoEncoder
from condensery.models.pooling import shapes_of
from condensery.models.vectors import VectorOptions, VectorSettings
from condensery.system.files import check_file, write_json
from condensery.system.inputs import standing
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary

HEAD = "condenser_head.safetensors"
DECODER = "context_decoder.safetensors"
# where the released codes keep such layers, under the name c_head: Condenser's beside the backbone, CoT-MAE's with it
RELEASED_HEAD = ("model.pt",)
RELEASED_DECODER = ("model.safetensors", "pytorch_model.bin")
_C_HEAD = "c_head."


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

    That is our own file, or ``model.pt`` as the papers' code writes it. Where there is neither, a line says that the head
    is new.

    Args:
        source: folder, ours or not, or hub name.
        vocabulary: of the tokens that it will read.
        head_layers, skip_from, late_mlm: see ``CondenserShape``; ``skip_from`` None = half of the backbone's layers.
        dropout: of hidden states and attention; None = as the checkpoint says.
        revision: commit, tag or branch on the hub.

    Raises:
        UserError: no checkpoint can be loaded, or its head is of another shape than the one asked for.
    """
    folder = checkpoint_folder(source, revision, more=RELEASED_HEAD)
    language_model = load_masked_language_model(folder, vocabulary, dropout=dropout)
    model = Condenser(language_model, condenser_shape(language_model, head_layers, skip_from, late_mlm))
    where = folder / HEAD, source
    _load_layers(model.head, *where, "Condenser head", "set head_layers", RELEASED_HEAD, layers="head_layers")
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
    folder = checkpoint_folder(source, revision)
    language_model = load_masked_language_model(folder, vocabulary, dropout=dropout)
    model = MaskedAutoEncoder(language_model, shape, init)
    where, advice = (folder / DECODER, source), "set its kind and its layers"
    released = RELEASED_DECODER if shape.kind == "masked" else ()
    _load_layers(model.decoder, *where, "decoder", advice, released, layers="layers", kind=shape.kind)
    return model


def save_retriever(retriever: SavedRetriever, folder: Path, tokenizer: Path | str) -> None:
    """Save a retriever; with separate towers the folder is the passage encoder and ``query_encoder/`` the other."""
    model = retriever.model
    settings = model.settings
    _save_encoder(model.passage, folder, tokenizer, retriever.passage_length)
    if not model.shared:
        _save_encoder(model.query, folder / QUERY_ENCODER, tokenizer, retriever.query_length)
        write_router(folder, QUERY_ENCODER)
    about = {
        "towers": "shared" if model.shared else "separate",
        "query_length": retriever.query_length,
        "passage_length": retriever.passage_length,
        **settings.own(),
    }
    write_json(folder / ABOUT, about)


def load_retriever(folder: Path) -> SavedRetriever:
    """Load what ``save_retriever`` or ``save_condenser`` saved. Raises ``UserError`` where there is no such thing."""
    about = read_about(folder, "query_length", "passage_length")
    return SavedRetriever(load_biencoder(folder), about["query_length"], about["passage_length"])


def load_biencoder(
    source: Path | str,
    separate: bool | None = None,
    dropout: float | None = None,
    options: VectorOptions | None = None,
    revision: str | None = None,
) -> BiEncoder:
    """Load a retriever from any checkpoint of the BERT family, ours or not.

    It makes vectors as the checkpoint says, where it is ours or one of sentence-transformers; otherwise of CLS.

    Args:
        source: folder or hub name.
        separate: two towers, both starting from the folder unless it has two; None = as the folder says.
        dropout: of hidden states and attention; None = as the checkpoint says.
        options: how vectors are made, in place of what the checkpoint says.
        revision: commit, tag or branch on the hub.
    """
    folder = checkpoint_folder(source, revision)
    settings, (passages, queries) = vector_settings(folder).replaced(options or {}), saved_towers(folder)

    def tower(saved: SavedTower) -> Encoder:
        encoder = load_encoder(saved.folder, dropout, settings=settings)
        encoder.head = load_head(saved.behind, encoder.model.config.hidden_size)
        check_cut(encoder, (options or {}).get("truncate_dim"), saved.folder)
        return encoder

    passage_encoder = tower(passages)
    if not (queries is not None if separate is None else separate):
        return BiEncoder(passage_encoder)
    if queries and not (folder / ABOUT).exists():  # ours are saved with one tokenizer
        _check_tokenizers(passages.folder, queries.folder)
    query_encoder = tower(queries or passages)
    if query_encoder.dimensions != passage_encoder.dimensions:
        sizes = f"{query_encoder.dimensions} numbers, those of passages {passage_encoder.dimensions}"
        raise UserError(f"{folder}: vectors of queries have {sizes}; they cannot be compared")
    return BiEncoder(query_encoder, passage_encoder)


def _check_tokenizers(passages: Path, queries: Path) -> None:
    """Raise ``UserError`` where two towers read other tokens, however long the longest text of each may be."""

    def read(folder: Path) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(load_tokenizer(folder).backend_tokenizer.to_str())
        return {**about, "truncation": None, "padding": None}

    if read(passages) != read(queries):
        raise UserError(f"{queries}: another tokenizer than in {passages}; here both towers read the same tokens")


def load_any_retriever(
    source: Path | str, options: VectorOptions | None = None, revision: str | None = None
) -> tuple[BiEncoder, tuple[int | None, int | None]]:
    """A retriever that was trained here or elsewhere, and the lengths of queries and passages that it says, if any.

    Args:
        source, options, revision: see ``load_biencoder``.

    Raises:
        UserError: nothing can be loaded, or the folder is one of sentence-transformers that makes vectors in a way that this
            project does not know.
    """
    folder = checkpoint_folder(source, revision)
    return load_biencoder(folder, options=options), longest_inputs(folder) or (None, None)


def backbone_towers(config: BackboneConfig, vocabulary: Vocabulary, seed: int, separate: bool = False) -> BiEncoder:
    """Towers of a backbone, without any head: from scratch by ``seed``, or as its checkpoint says.

    Raises ``UserError`` where the checkpoint cannot be had, is not of the BERT family, or does not fit the tokenizer.
    """
    options = config.vector_options()
    if config.name is None:
        language_model: Any = masked_language_model(config, vocabulary, seed)
        encoder = Encoder(language_model.base_model, VectorSettings().replaced(options))
        check_cut(encoder, options.get("truncate_dim"), "backbone")
        return BiEncoder.from_encoder(encoder, separate)
    model = load_biencoder(config.name, separate, config.dropout, options, config.revision)
    check_words(model.passage.model, config.name, vocabulary)
    return model


def load_encoder(
    source: Path | str,
    dropout: float | None = None,
    revision: str | None = None,
    settings: VectorSettings | None = None,
) -> Encoder:
    """The backbone of a checkpoint, a folder or a hub name, in fp32, without its pooling layer and what stands behind it.

    Raises ``UserError`` where no checkpoint can be loaded, or its tensors are not those of its config.
    """
    folder = checkpoint_folder(source, revision)
    with readable(folder):
        config = checkpoint_config(folder, dropout)
        family = FAMILIES[config.model_type]
        model = load_weights(
            AutoModel,
            folder,
            config,
            Allowed(unused=(*family.lm_head, *OTHER_HEADS, *DECODERS)),
            trust_remote_code=False,
            **family.options,
            dtype=torch.float32,
            attn_implementation="eager",
        )
    return Encoder(model, settings)


def _save_pretrained(
    model: Condenser | MaskedAutoEncoder, layers: nn.ModuleList, file: Path, tokenizer: Path | str, length: int
) -> None:
    """Save a checkpoint in the folder of ``file``, and the layers for pre-training alone, if any, as ``file``."""
    _save_model(model.language_model, file.parent, tokenizer, length)
    if layers:
        save_file({name: value.contiguous() for name, value in layers.state_dict().items()}, file)
    about = {"shape": asdict(model.shape), "towers": "shared", "query_length": length, "passage_length": length}
    write_json(file.parent / ABOUT, about)


def _load_layers(
    new: nn.ModuleList,
    file: Path,
    source: Path | str,
    what: str,
    advice: str,
    released: Sequence[str],
    *,
    layers: str,
    **needed: str,
) -> None:
    """Load what ``_save_pretrained``, or the papers' code, saved beside a checkpoint; otherwise say that the layers are new.

    Args:
        new: the layers that are wanted.
        file: beside the checkpoint, where it is of ours.
        source: the checkpoint as it was named.
        what: they are called in messages.
        advice: what to do where their shape is another.
        released: files beside the checkpoint in which the papers' code keeps such layers.
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
        held = {file.parent / name: _released_layers(file.parent / name) for name in released}
        file, weights = next(((file, stored) for file, stored in held.items() if stored), (file, {}))
        if not weights:
            print(f"{source}: new, with random weights: a {what} of {len(new)} layers", flush=True)
            return
        print(f"{source}: goes on with the {what} of {_depth(weights)} layers in {file.name}", flush=True)
        shape = needed
    else:
        check_file(file)
        with readable(file):
            weights = load_file(file)
    try:
        if not needed.items() <= shape.items():
            raise RuntimeError
        new.load_state_dict(weights)
    except RuntimeError:
        where = f"in the stage that made it ({shape})" if shape != needed else f"there ({_depth(weights)} layers)"
        raise UserError(f"{file}: a {what} of another shape; {advice} as {where}") from None


def _released_layers(file: Path) -> dict[str, Tensor]:
    """The tensors of such layers as the papers' code names them; none where the file does not hold any, or is not there."""
    if not standing(file):
        return {}
    check_file(file)
    with readable(file):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as tensors:
                held = {name: tensors.get_tensor(name) for name in tensors.keys() if name.startswith(_C_HEAD)}  # noqa: SIM118
        else:
            held = dict(torch.load(file, map_location="cpu", weights_only=True))
    return {name.removeprefix(_C_HEAD): value for name, value in held.items() if name.startswith(_C_HEAD)}


def _depth(weights: Mapping[str, Tensor]) -> int:
    """How many layers these tensors are of, by their names."""
    return len({name.partition(".")[0] for name in weights})


def _save_encoder(encoder: Encoder, folder: Path, tokenizer: Path | str, max_length: int) -> None:
    _save_model(encoder.model, folder, tokenizer, max_length, encoder.settings, encoder.head)


def _save_model(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: Path | str,
    max_length: int,
    settings: VectorSettings | None = None,
    head: Iterable[nn.Module] = (),
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder)
    load_tokenizer(tokenizer).save_pretrained(folder)
    layers = list(head)
    save_head(layers, write_modules(folder, model.config.hidden_size, max_length, settings, shapes_of(layers)))
