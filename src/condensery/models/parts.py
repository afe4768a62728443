"""The parts of a BERT or RoBERTa backbone that ``Encoder`` runs, loaded without the library, for one who asks a question.

Importing the library's model takes twice as long as all else that an answer needs. What is computed is no second model:
``Encoder`` runs these parts as it runs the library's, they have the library's names, and a test compares every number. What
they do not know is left to the library (``load_parts`` gives None).

Notation: n tokens, d hidden size.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.files import read_json

WEIGHTS = "model.safetensors"
FAMILIES = ("bert", "roberta", "xlm-roberta")
NEEDED = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "pad_token_id",
}


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing: what would be drawn is replaced at once."""


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """As above."""


class _Embeddings(nn.Module):
    """Words, types and positions, normalised."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = _Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Ids (1, n) each to states (1, n, d)."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        states = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        normed: Tensor = self.LayerNorm(states + self.position_embeddings(position_ids))
        return normed


class _SelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.query = _Linear(config.hidden_size, config.hidden_size)
        self.key = _Linear(config.hidden_size, config.hidden_size)
        self.value = _Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(0.0)  # asked for its rate alone, and only in training


class _Output(nn.Module):
    """A projection, the residual, and the norm behind them (post-LN)."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.dense = _Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """(n, width) and (n, d) to (n, d)."""
        normed: Tensor = self.LayerNorm(self.dense(states) + residual)
        return normed


class _Intermediate(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = _Linear(config.hidden_size, config.intermediate_size)

    def forward(self, states: Tensor) -> Tensor:
        """(n, d) to (n, intermediate size)."""
        return nn.functional.gelu(self.dense(states))


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Output(config, config.hidden_size)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = _Intermediate(config)
        self.output = _Output(config, config.intermediate_size)


class _Stack(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))


class Parts(nn.Module):
    """What ``Encoder`` reads of a ``BertModel`` or ``RobertaModel``, for inference alone: there is no dropout."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Stack(config)


def load_parts(folder: Path) -> Parts | None:
    """The backbone of a checkpoint folder in fp32, or None where only the library can tell what is in it."""
    try:
        about = read_json(folder / "config.json")
        if not known(about):
            return None
        weights = {name: value.float() for name, value in load_file(folder / WEIGHTS).items()}
        parts = Parts(SimpleNamespace(**about))
        parts.load_state_dict(weights, assign=True)
    except (UserError, OSError, ValueError, RuntimeError, SafetensorError):  # of a fault the library tells more
        return None
    return parts.eval()


def known(about: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's ``config.json`` describes nothing that these parts lack."""
    plain = about.get("hidden_act") == "gelu" and about.get("position_embedding_type", "absolute") == "absolute"
    special = any(about.get(key) for key in ("is_decoder", "add_cross_attention", "quantization_config"))
    filled = all(about.get(key) is not None for key in NEEDED)
    return about.get("model_type") in FAMILIES and plain and filled and not special
