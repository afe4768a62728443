"""Saves and loads retrievers. A saved folder is both a Hugging Face and a sentence-transformers checkpoint.

``AutoModel.from_pretrained(folder)`` and ``SentenceTransformer(folder)`` both load the retriever. ``condensery.json``
describes the folder. If the towers are separate, the folder holds the passage encoder, and its subfolder ``query_encoder/``
holds the query encoder. ``SentenceTransformer`` then encodes queries and passages with different encoders.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.backbone import (
    LM_HEAD,
    OTHER_HEADS,
    OWN_TOKENIZER,
    check_words,
    checkpoint_config,
    masked_language_model,
)
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.head import check_cut, load_head, save_head
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import (
    ABOUT,
    QUERY_ENCODER,
    SavedTower,
    check_compares,
    longest_inputs,
    read_about,
    saved_towers,
    vector_settings,
)
from condensery.models.checkpoints.sentence_transformers import write_modules, write_router
from condensery.models.checkpoints.weights import ENCODER, Allowed, load_weights, readable, save_checkpoint
from condensery.models.encoder import Encoder
from condensery.models.families import FAMILIES
from condensery.models.pooling import shapes_of
from condensery.models.vectors import VectorOptions, VectorSettings
from condensery.system.files import write_json
from condensery.tokens.tokenizer import check_same_tokenizer, load_tokenizer
from condensery.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class SavedRetriever:
    """A retriever as it is saved: the towers, and the maximum query and passage lengths in training, in tokens.

    ``language_model`` is a masked language model that contains the backbone of the passage tower. If it is given, its LM
    head is saved too.
    """

    model: BiEncoder
    query_length: int
    passage_length: int
    language_model: PreTrainedModel | None = None


def save_retriever(retriever: SavedRetriever, folder: Path, tokenizer: Path | str) -> None:
    """Save a retriever in ``folder``. A separate query encoder is saved in the subfolder ``query_encoder/``."""
    model = retriever.model
    settings = model.settings
    passage, query = model.passage, model.query
    saved = retriever.language_model or passage.model
    save_model(saved, folder, tokenizer, retriever.passage_length, settings, passage.head)
    if not model.shared:
        save_model(query.model, folder / QUERY_ENCODER, tokenizer, retriever.query_length, query.settings, query.head)
        write_router(folder, QUERY_ENCODER)
    about = {
        "towers": "shared" if model.shared else "separate",
        "query_length": retriever.query_length,
        "passage_length": retriever.passage_length,
        **settings.own(),
    }
    write_json(folder / ABOUT, about)


def load_lm_head(source: Path | str, encoder: Encoder) -> PreTrainedModel | None:
    """Load the masked language model of a checkpoint, with the backbone of ``encoder`` in place of the checkpoint's backbone.

    Args:
        source: folder or hub name of a retriever or of a language model.
        encoder: the passage encoder that was loaded from ``source``.

    Returns:
        the masked language model; None if the checkpoint has no LM head.

    Raises:
        UserError: the checkpoint cannot be loaded, or its tensors do not match its config.
    """
    folder = saved_towers(checkpoint_folder(source))[0].folder
    allowed = Allowed(dict.fromkeys(encoder.family.lm_head, LM_HEAD), OTHER_HEADS, silent=True)
    with readable(folder):
        model: Any = load_weights(AutoModelForMaskedLM, folder, checkpoint_config(folder), allowed, **ENCODER)
    if model.new_parts:
        return None
    setattr(model, model.base_model_prefix, encoder.model)
    model.tie_weights()
    return model


def load_retriever(folder: Path) -> SavedRetriever:
    """Load a folder that ``save_retriever`` or ``save_pretraining_model`` wrote. Raises ``UserError`` for other folders."""
    about = read_about(folder, "query_length", "passage_length")
    return SavedRetriever(load_biencoder(folder), about["query_length"], about["passage_length"])


def load_biencoder(
    source: Path | str,
    separate: bool | None = None,
    dropout: float | None = None,
    options: VectorOptions | None = None,
    revision: str | None = None,
) -> BiEncoder:
    """Load a retriever from any checkpoint of the BERT family, from this project or elsewhere.

    The vector settings of a checkpoint of this project or of sentence-transformers are read from its files. For any other
    checkpoint, vectors are CLS states.

    Args:
        source: folder or hub name.
        separate: whether the retriever has two towers. If the folder has a single encoder, both towers are initialised from
            it. None = as in the folder.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        options: vector settings that replace the checkpoint's own settings.
        revision: commit, tag or branch on the hub.

    Raises:
        UserError: the checkpoint cannot be loaded, or its two towers differ in vector size or tokenizer.
    """
    folder = checkpoint_folder(source, revision)
    settings, (passages, queries) = vector_settings(folder).replaced(options or {}), saved_towers(folder)

    def tower(saved: SavedTower) -> Encoder:
        encoder = load_encoder(saved.folder, dropout, settings=settings)
        encoder.head = load_head(saved.behind, encoder.model.config.hidden_size)
        check_cut(encoder, (options or {}).get("truncate_dim"), saved.folder)
        return encoder

    passage_encoder = tower(passages)
    two = queries is not None if separate is None else separate
    if queries is not None and not two:
        print(f"{folder}: only its passage encoder is used, for queries too; towers=separate uses both", flush=True)
    if not two:
        return BiEncoder(passage_encoder)
    if queries and not (folder / ABOUT).exists():  # the towers of this project share one tokenizer
        _check_tokenizers(passages.folder, queries.folder)
    query_encoder = tower(queries or passages)
    if query_encoder.dimensions != passage_encoder.dimensions:
        sizes = f"{query_encoder.dimensions} dimensions, those of passages {passage_encoder.dimensions}"
        raise UserError(f"{folder}: vectors of queries have {sizes}; both must have the same number")
    return BiEncoder(query_encoder, passage_encoder)


def _check_tokenizers(passages: Path, queries: Path) -> None:
    """Raise ``UserError`` if two towers have different tokenizers. The maximum input lengths may differ."""

    def read(folder: Path) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(load_tokenizer(folder).backend_tokenizer.to_str())
        return {**about, "truncation": None, "padding": None}

    if read(passages) != read(queries):
        raise UserError(f"{queries}: its tokenizer differs from that in {passages}; both towers must have the same one")


def load_any_retriever(
    source: Path | str, options: VectorOptions | None = None
) -> tuple[BiEncoder, tuple[int | None, int | None]]:
    """Load a retriever from this project or elsewhere, with the maximum query length and passage length from its folder.

    Args:
        source, options: as in ``load_biencoder``.

    Returns:
        the retriever, the maximum query length and the maximum passage length in tokens. Both lengths are None if the
        folder does not give them.

    Raises:
        UserError: the checkpoint cannot be loaded, or sentence-transformers would compute its vectors in a way that this
            project does not support.
    """
    folder = checkpoint_folder(source)
    check_compares(folder)
    return load_biencoder(folder, options=options), longest_inputs(folder) or (None, None)


def backbone_towers(config: BackboneConfig, vocabulary: Vocabulary, seed: int, separate: bool = False) -> BiEncoder:
    """Create the towers that a backbone's config describes, without any pre-training head.

    The weights are those of the config's checkpoint, or else randomly initialised by ``seed``.

    Raises:
        UserError: the checkpoint cannot be loaded, is not of the BERT family, or does not fit the tokenizer.
    """
    options = config.vector_options()
    if config.name is None:
        language_model: Any = masked_language_model(config, vocabulary, seed)
        encoder = Encoder(language_model.base_model, VectorSettings().replaced(options))
        check_cut(encoder, options.get("truncate_dim"), "backbone")
        return BiEncoder.from_encoder(encoder, separate)
    model = load_biencoder(config.name, separate, config.dropout, options, config.revision)
    check_words(model.passage.model, config.name, vocabulary)
    check_same_tokenizer(checkpoint_folder(config.name, config.revision), vocabulary, config.name, OWN_TOKENIZER)
    return model


def load_encoder(
    source: Path | str,
    dropout: float | None = None,
    settings: VectorSettings | None = None,
    unused: tuple[str, ...] = (),
) -> Encoder:
    """Load the backbone of a checkpoint in fp32, without a pooling layer and without the layers after pooling.

    Args:
        source: folder or hub name.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        settings: vector settings of the encoder; None = the defaults.
        unused: further parts that the checkpoint may have, as in ``Allowed``.

    Raises:
        UserError: the checkpoint cannot be loaded, or its tensors do not match its config.
    """
    folder = checkpoint_folder(source)
    with readable(folder):
        config = checkpoint_config(folder, dropout)
        family = FAMILIES[config.model_type]
        allowed = Allowed(unused=(*family.lm_head, *OTHER_HEADS, *unused))
        model = load_weights(AutoModel, folder, config, allowed, **family.options, **ENCODER)
    return Encoder(model, settings)


def save_model(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: Path | str,
    max_length: int,
    settings: VectorSettings | None = None,
    head: Iterable[nn.Module] = (),
) -> None:
    """Save a model with its tokenizer, the modules of sentence-transformers, and the layers after the pooling."""
    save_checkpoint(model, load_tokenizer(tokenizer), folder)
    layers = list(head)
    save_head(layers, write_modules(folder, model.config.hidden_size, max_length, settings, shapes_of(layers)))
