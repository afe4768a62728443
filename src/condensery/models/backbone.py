"""Where a backbone comes from: the hub, a folder, or nothing (from scratch)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaForMaskedLM,
)
from transformers.utils import logging as transformers_logging

from condensery.errors import UserError
from condensery.models.config import BackboneConfig
from condensery.tokens.vocabulary import Vocabulary

FAMILIES: dict[str, type[PreTrainedModel]] = {
    "bert": BertForMaskedLM,
    "roberta": RobertaForMaskedLM,
    "xlm-roberta": XLMRobertaForMaskedLM,
}


def masked_language_model(config: BackboneConfig, vocabulary: Vocabulary, seed: int) -> PreTrainedModel:
    """The backbone with its masked-language-model head.

    Raises:
        UserError: the checkpoint cannot be had, is not of the BERT family, or does not fit the tokenizer.
    """
    if config.name is None:
        return _from_scratch(config, vocabulary, seed)
    torch.manual_seed(seed)  # a checkpoint without MLM head gets a fresh one
    return load_masked_language_model(config.name, vocabulary, revision=config.revision, **dropouts(config.dropout))


def load_masked_language_model(
    source: str | Path, vocabulary: Vocabulary, revision: str | None = None, **overrides: Any
) -> PreTrainedModel:
    """Load a checkpoint of the BERT family with its MLM head, in fp32. Errors as ``masked_language_model``."""
    with readable(source):
        family: Any = FAMILIES[checkpoint_config(source, revision).model_type]
        model = family.from_pretrained(
            source, revision=revision, dtype=torch.float32, attn_implementation="eager", **overrides
        )
    if model.config.vocab_size < vocabulary.size:
        raise UserError(
            f"{source}: the model knows {model.config.vocab_size} tokens, the tokenizer {vocabulary.size};"
            " set backbone.tokenizer to the checkpoint's own"
        )
    return model


def checkpoint_config(source: str | Path, revision: str | None = None) -> PretrainedConfig:
    """The library's config of a checkpoint. Raises ``UserError`` where it is not of the BERT family."""
    config: PretrainedConfig = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    if config.model_type not in FAMILIES:
        raise UserError(f"{source}: a {config.model_type} model; use one of the families {', '.join(FAMILIES)}")
    return config


@contextmanager
def readable(source: str | Path) -> Iterator[None]:
    """While loading ``source``: the library is quiet, and what it cannot read becomes a ``UserError``.

    Nothing of ``source`` is run: its own Python code is refused, and of pickles (``.bin``) torch reads tensors alone.
    """
    try:
        with quiet():
            yield
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        reason = [*str(error).strip().splitlines(), type(error).__name__][0]
        if isinstance(source, Path):
            raise UserError(f"{source}: no checkpoint can be loaded ({reason})") from None
        raise UserError(
            f"backbone.name: cannot load {source!r} ({reason}); give a folder with a checkpoint, a hub name that this"
            " machine can reach, or backbone.name=null to start from scratch"
        ) from None


class quiet:  # noqa: N801  (a context manager, named as a verb phrase reads)
    """Keep transformers' bars and its reports of weights that a task does not use out of our progress lines."""

    def __enter__(self) -> None:
        self.level = transformers_logging.get_verbosity()
        self.bar = transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        transformers_logging.set_verbosity(self.level)
        if self.bar:
            transformers_logging.enable_progress_bar()


def dropouts(p: float | None) -> dict[str, float]:
    """The library's config entries for dropout ``p``; none for None, which keeps what the checkpoint says."""
    return {} if p is None else {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}


def _from_scratch(config: BackboneConfig, vocabulary: Vocabulary, seed: int) -> PreTrainedModel:
    roberta = config.family == "roberta"
    family: Any = RobertaConfig if roberta else BertConfig
    model_config = family(
        vocab_size=vocabulary.size,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate,
        # RoBERTa counts positions from pad_token_id + 1
        max_position_embeddings=config.max_positions + (vocabulary.pad + 1 if roberta else 0),
        type_vocab_size=1 if roberta else 2,
        pad_token_id=vocabulary.pad,
        bos_token_id=vocabulary.cls,
        eos_token_id=vocabulary.sep,
        initializer_range=config.initializer_range,
        attn_implementation="eager",
        **dropouts(0.1 if config.dropout is None else config.dropout),
    )
    torch.manual_seed(seed)
    return FAMILIES[config.family](model_config)
