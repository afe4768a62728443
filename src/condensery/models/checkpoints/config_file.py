"""Checks ``config.json`` of a checkpoint before transformers builds a model from it.

The transformers library accepts any value, such as zero heads, a string as the number of layers, or an unknown activation.
Wrong values cause a later error that does not name the file, or no error at all. This module raises an error with a one-line
message that names file and key.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.activations import ACT2FN

from condensery.errors import UserError

MOST_LAYERS = 512  # more layers than any encoder has; building millions of layers would exhaust the memory
MOST_LABELS = 1 << 16  # transformers creates a name for each label
MOST = 2**31 - 1  # upper bound of every other size; sizes are compared with the weights when the weights are loaded


@dataclass(frozen=True)
class _Rule:
    """A rule for a value: the test, and the description of valid values in messages."""

    fits: Callable[[Any], bool]
    needed: str

    def or_null(self) -> "_Rule":
        return _Rule(lambda value: value is None or self.fits(value), f"{self.needed} or null")


def _whole(least: int, most: int = MOST) -> _Rule:
    return _Rule(lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}")


def _number(least: float, most: float, above: bool = False) -> _Rule:
    needed = f"a number {'above' if above else 'from'} {least:g} and below {most:g}"
    return _Rule(
        lambda value: type(value) in (int, float) and least <= value < most and (value != least or not above), needed
    )


def _is_dtype(value: Any) -> bool:
    dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else None
    return value == "auto" or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)


def _all(rule: _Rule, keys: str) -> dict[str, _Rule]:
    """Return the rule for each of the keys, which are separated by spaces."""
    return dict.fromkeys(keys.split(), rule)


_LAYERS, _SHARE = _whole(1, MOST_LAYERS), _number(0.0, 1.0)
_BOOL = _Rule(lambda value: isinstance(value, bool), "true or false")
_ACTIVATION = _Rule(lambda value: isinstance(value, str) and value in ACT2FN, "the name of an activation, such as gelu")

# the rule for each key, for all families; transformers checks the types of the other keys
_RULES = {
    **_all(
        _whole(1),
        "vocab_size hidden_size num_attention_heads intermediate_size max_position_embeddings type_vocab_size d_model d_kv"
        " d_ff num_heads encoder_attention_heads encoder_ffn_dim decoder_attention_heads decoder_ffn_dim"
        " relative_attention_num_buckets relative_attention_max_distance dim n_heads hidden_dim local_attention"
        " global_attn_every_n_layers embedding_size",
    ),
    **_all(_LAYERS, "num_hidden_layers num_layers n_layers encoder_layers decoder_layers"),
    "num_labels": _whole(0, MOST_LABELS),
    "num_decoder_layers": _LAYERS.or_null(),  # null in a T5: as many layers as the encoder has
    **_all(
        _SHARE,
        "hidden_dropout_prob attention_probs_dropout_prob dropout_rate dropout attention_dropout activation_dropout"
        " encoder_layerdrop decoder_layerdrop mlp_dropout embedding_dropout",
    ),
    "classifier_dropout": _SHARE.or_null(),
    **_all(_number(0.0, 1.0, above=True), "layer_norm_eps layer_norm_epsilon norm_eps"),
    **_all(_number(0.0, 100.0), "initializer_range initializer_factor init_std"),
    **_all(_ACTIVATION, "hidden_act activation_function hidden_activation classifier_activation activation"),
    **_all(_Rule(_is_dtype, "a floating-point type of torch, such as float32").or_null(), "dtype torch_dtype"),
    **_all(_BOOL, "is_encoder_decoder tie_word_embeddings scale_embedding"),
    **_all(_whole(0).or_null(), "pad_token_id decoder_start_token_id"),
    "quantization_config": _Rule(lambda value: value is None, "weights that are not quantised"),
    "model_type": _Rule(lambda value: isinstance(value, str) and bool(value), "a model family, such as bert"),
}

# further rules for encoders, which this project runs with its own forward pass
_ABSENT = _Rule(lambda value: not value, "false, because only encoders are supported")
_OF_ENCODERS = {
    **_all(_ABSENT, "is_decoder add_cross_attention is_encoder_decoder"),
    "position_embedding_type": _Rule(lambda value: value in (None, "absolute"), "absolute; others are not supported"),
}


def check_config(about: Any, where: str, encoder: bool) -> dict[str, Any]:
    """Check the content of a ``config.json`` key by key, and return it.

    Args:
        about: content of the file.
        where: name of the file in messages.
        encoder: whether ``Encoder`` will run the model; otherwise transformers runs it.

    Raises:
        UserError: the content is not an object, or a key has an invalid value. The message is one line with the file, the
            key, the value and the valid values.
    """
    if not isinstance(about, dict):
        raise UserError(f"{where}: must be a JSON object with the model's sizes, not {shown(about)}")
    _check(about, where, {**_RULES, **_OF_ENCODERS} if encoder else _RULES)
    for part in ("encoder", "decoder"):  # some configs hold a further config for each of these parts
        if isinstance(about.get(part), dict):
            _check(about[part], f"{where}: {part}", _RULES)
    return about


def check_encoder(config: Any, where: str) -> None:
    """Check that the sizes in an encoder's config are consistent, and that its RoPE is of the default type.

    Args:
        config: transformers' config, with defaults for the keys that the file leaves out.
        where: name of the file in messages.

    Raises:
        UserError: the sizes are inconsistent, or the RoPE is of another type.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    if hidden % heads:
        raise UserError(f"{where}: num_attention_heads is {heads}; it must divide hidden_size, which is {hidden}")
    pad, roberta = config.pad_token_id, config.model_type in ("roberta", "xlm-roberta", "camembert")
    if pad is None and roberta:  # positions are counted from pad_token_id + 1
        raise UserError(f"{where}: pad_token_id is null; a {config.model_type} model needs it")
    if pad is not None and pad >= config.vocab_size:
        raise UserError(f"{where}: pad_token_id is {pad}; it must be below vocab_size, which is {config.vocab_size}")
    if config.model_type == "mpnet" and pad != 1:  # MPNet's embeddings count positions from 2, whatever the config says
        raise UserError(f"{where}: pad_token_id is {shown(pad)}; in an mpnet model it must be 1")
    if config.model_type == "modernbert":
        for kind, about in config.rope_parameters.items():
            if about is not None and about.get("rope_type", "default") != "default":
                raise UserError(f"{where}: rope_type of {kind} is {shown(about['rope_type'])}; it must be default")
        if hidden // heads % 2:
            raise UserError(f"{where}: hidden_size / num_attention_heads is {hidden // heads}; it must be even")
    if roberta and config.max_position_embeddings <= pad + 1:
        raise UserError(
            f"{where}: max_position_embeddings is {config.max_position_embeddings}; a {config.model_type} model whose"
            f" pad_token_id is {pad} needs more than {pad + 1}"
        )


def shown(value: Any) -> str:
    """Return a value as JSON, truncated to 40 characters."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check(about: Mapping[str, Any], where: str, rules: Mapping[str, _Rule]) -> None:
    for key in about.keys() & rules.keys():
        if not rules[key].fits(about[key]):
            raise UserError(f"{where}: {key} is {shown(about[key])}; it must be {rules[key].needed}")
