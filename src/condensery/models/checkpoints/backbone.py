"""Creates a backbone from a checkpoint on the hub or in a folder, or randomly initialised."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from condensery.errors import UserError
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.config_file import check_config, check_encoder
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import check_family, check_no_adapter
from condensery.models.checkpoints.weights import ENCODER, Allowed, load_weights, readable
from condensery.models.families import FAMILIES
from condensery.system.files import read_json
from condensery.tokens.tokenizer import check_same_tokenizer
from condensery.tokens.vocabulary import Vocabulary

OWN_TOKENIZER = "use the checkpoint's own tokenizer (backbone.tokenizer)"
LM_HEAD = "MLM head"
DECODERS = ("c_head",)  # the decoder of CoT-MAE, which its code saves among the weights of the backbone
# heads of other tasks, and decoders, that a checkpoint may contain
OTHER_HEADS = (
    *("pooler", "cls.seq_relationship", "classifier", "pre_classifier", "qa_outputs", "discriminator_predictions"),
    *DECODERS,
)


def masked_language_model(config: BackboneConfig, vocabulary: Vocabulary, seed: int) -> PreTrainedModel:
    """Create the backbone of a config with its MLM head, from the config's checkpoint or randomly initialised by ``seed``.

    Raises:
        UserError: the checkpoint cannot be loaded, is not of one of ``FAMILIES``, or does not match the tokenizer.
    """
    if config.name is None:
        return _from_scratch(config, vocabulary, seed)
    torch.manual_seed(seed)  # a checkpoint without an MLM head gets a randomly initialised one
    return load_masked_language_model(config.name, vocabulary, config.revision, config.dropout)


def load_masked_language_model(
    source: str | Path, vocabulary: Vocabulary, revision: str | None = None, dropout: float | None = None
) -> PreTrainedModel:
    """Load a checkpoint of one of ``FAMILIES`` with its MLM head, in fp32.

    Args:
        source: folder or hub name.
        vocabulary: vocabulary of the tokens that the model will read.
        revision: commit, tag or branch on the hub.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.

    Raises:
        UserError: the checkpoint cannot be loaded, is not of one of ``FAMILIES``, or does not fit the tokenizer.
    """
    folder = checkpoint_folder(source, revision)
    with readable(folder):
        config = checkpoint_config(folder, dropout)
        allowed = Allowed(dict.fromkeys(FAMILIES[config.model_type].lm_head, LM_HEAD), OTHER_HEADS)
        model = load_weights(AutoModelForMaskedLM, folder, config, allowed, **ENCODER)
    check_words(model, source, vocabulary)
    check_same_tokenizer(folder, vocabulary, str(source), OWN_TOKENIZER)
    return model


def check_words(model: PreTrainedModel, source: str | Path, vocabulary: Vocabulary) -> None:
    """Raise ``UserError`` if the tokenizer has more tokens than the model."""
    if model.config.vocab_size < vocabulary.size:
        raise UserError(
            f"{source}: the model knows {model.config.vocab_size} tokens, but the tokenizer has {vocabulary.size};"
            f" {OWN_TOKENIZER}"
        )


def checkpoint_config(source: Path, dropout: float | None = None) -> Any:
    """Return transformers' config of a checkpoint folder. If ``dropout`` is given, it replaces the config's own rate.

    Raises:
        UserError: the config is of an unsupported family, or holds values from which no model can be built; or the folder
            holds an adapter, which this project does not read.
    """
    where, about = f"{source}/config.json", config_content(source)
    check_family(about, where)
    check_config(about, where, encoder=True)
    config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.model_type not in FAMILIES:  # the file lacks this key, and transformers guessed it
        raise UserError(f"{where}: model_type is missing; use one of the families {', '.join(FAMILIES)}")
    check_encoder(config, where)
    for name, value in dropouts(config.model_type, dropout).items():
        setattr(config, name, value)
    return config


def config_content(source: str | Path, revision: str | None = None) -> Any:
    """Return the content of ``config.json`` of a folder or hub name.

    Raises ``UserError`` if a folder's file is not JSON, or if the folder holds an adapter.
    """
    check_no_adapter(Path(source))
    file = Path(source) / "config.json"
    return read_json(file) if file.is_file() else PretrainedConfig.get_config_dict(source, revision=revision)[0]


def dropouts(family: str, p: float | None) -> dict[str, float]:
    """Return transformers' config entries for dropout rate ``p``; no entries for None, which keeps the checkpoint's rate."""
    return {} if p is None else dict.fromkeys(FAMILIES[family].dropouts, p)


def _from_scratch(config: BackboneConfig, vocabulary: Vocabulary, seed: int) -> PreTrainedModel:
    family = FAMILIES[config.family]
    tokens = {"pad_token_id": vocabulary.pad, "bos_token_id": vocabulary.cls, "eos_token_id": vocabulary.sep}
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    if config.family == "distilbert":
        names = ("dim", "n_layers", "n_heads", "hidden_dim")
    sizes = dict(zip(names, (config.hidden, config.layers, config.heads, config.intermediate), strict=True))
    own: dict[str, Any] = {}
    if config.family in ("bert", "roberta"):
        own = {"type_vocab_size": 1 if config.family == "roberta" else 2}
    elif config.family == "modernbert":
        own = {"cls_token_id": vocabulary.cls, "sep_token_id": vocabulary.sep}
    model_config = AutoConfig.for_model(
        config.family,
        vocab_size=vocabulary.size,
        # RoBERTa counts positions from pad_token_id + 1
        max_position_embeddings=config.max_positions + (vocabulary.pad + 1 if family.counts_from_padding else 0),
        initializer_range=config.initializer_range,
        attn_implementation="eager",
        **tokens,
        **sizes,
        **own,
        **dropouts(config.family, 0.1 if config.dropout is None else config.dropout),
    )
    torch.manual_seed(seed)
    return AutoModelForMaskedLM.from_config(model_config)
