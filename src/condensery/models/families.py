"""The families of encoders: where the library's models keep their parts, and what a layer computes around its attention.

BERT and RoBERTa normalise behind each part of a layer and have embeddings of positions; so has DistilBERT, without types of
tokens. ModernBERT (Warner et al. 2024) normalises before, rotates queries and keys by their positions (RoPE), and in two
layers of three a token sees only those near it.

Notation: n tokens, k queries, d hidden size, h heads, e = d / h.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    DistilBertForMaskedLM,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaForMaskedLM,
    XLMRobertaForMaskedLM,
)
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

ROPE = "rope_parameters"


class Bert:
    """BERT, and RoBERTa, whose parts have the same names.

    Attributes:
        language_model: the library's class with an MLM head.
        lm_head: beginnings of the names of that head's tensors.
        options: arguments of the library's ``AutoModel`` for a backbone without further parts.
        dropouts: the entries of the config that are probabilities of dropout.
        counts_from_padding: whether positions are counted from behind the padding's id.
    """

    lm_head: tuple[str, ...] = ("cls.predictions", "lm_head")
    options: dict[str, Any] = {"add_pooling_layer": False}  # noqa: RUF012
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    def __init__(self, language_model: type[PreTrainedModel], counts_from_padding: bool = False) -> None:
        self.language_model, self.counts_from_padding = language_model, counts_from_padding

    def offset(self, config: Any) -> int:
        """The first position's row in the table of positions."""
        return config.pad_token_id + 1 if self.counts_from_padding else 0

    def layers(self, model: Any) -> nn.ModuleList:
        """The layers of a backbone, the first first."""
        layers: nn.ModuleList = model.encoder.layer
        return layers

    def new_layer(self, layers: nn.ModuleList, config: Any) -> nn.Module:
        """A further layer; every token sees all others of its row."""
        layer: nn.Module = type(layers[0])(config)
        return layer

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """What the first layer reads (n, d), of ids, positions and types (n,)."""
        if types is not None:
            types = types[None] if model.config.type_vocab_size > 1 else None  # RoBERTa tells no types apart
        at = positions[None] + self.offset(model.config)
        embedded: Tensor = model.embeddings(input_ids=ids[None], position_ids=at, token_type_ids=types)[0]
        return embedded

    def position_vectors(self, model: Any, positions: Tensor) -> Tensor:
        """The embeddings of positions (k,), (k, d)."""
        vectors: Tensor = model.embeddings.position_embeddings(positions + self.offset(model.config))
        return vectors

    def finish(self, model: Any, states: Tensor) -> Tensor:
        """What is left to do to states (k, d) behind the last layer."""
        return states

    def transform(self, model: Any, states: Tensor) -> Tensor:
        """What the LM head does to states (k, d) before it projects them."""
        if hasattr(model, "cls"):
            changed: Tensor = model.cls.predictions.transform(states)
        else:
            changed = model.lm_head.layer_norm(nn.functional.gelu(model.lm_head.dense(states)))
        return changed

    def heads(self, layer: Any) -> int:
        """h."""
        return int(layer.attention.self.num_attention_heads)

    def attention_dropout(self, layer: Any) -> float:
        """Of attention's weights while it trains."""
        return float(layer.attention.self.dropout.p)

    def window(self, layer: Any) -> int | None:
        """How many tokens away a token may be that is seen; None = any."""
        return None

    def query(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        """Queries (k, d) of states (k, d) at positions (k,) of their rows."""
        queries: Tensor = layer.attention.self.query(states)
        return queries

    def key_and_value(self, layer: Any, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (n, d) each."""
        return layer.attention.self.key(states), layer.attention.self.value(states)

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        """What follows attention, token by token: of what each state (k, d) was told (k, d) the layer's output (k, d)."""
        attended = layer.attention.output(context, states)
        output: Tensor = layer.output(layer.intermediate(attended), attended)
        return output


class DistilBert(Bert):
    """DistilBERT: BERT's layers with other names, no types of tokens."""

    lm_head = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    options: dict[str, Any] = {}  # noqa: RUF012
    dropouts = ("dropout", "attention_dropout")

    def layers(self, model: Any) -> nn.ModuleList:
        layers: nn.ModuleList = model.transformer.layer
        return layers

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        embedded: Tensor = model.embeddings(input_ids=ids[None], position_ids=positions[None])[0]
        return embedded

    def transform(self, model: Any, states: Tensor) -> Tensor:
        changed: Tensor = model.vocab_layer_norm(model.activation(model.vocab_transform(states)))
        return changed

    def heads(self, layer: Any) -> int:
        return int(layer.attention.n_heads)

    def attention_dropout(self, layer: Any) -> float:
        return float(layer.attention.dropout.p)

    def query(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        queries: Tensor = layer.attention.q_lin(states)
        return queries

    def key_and_value(self, layer: Any, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return layer.attention.k_lin(states), layer.attention.v_lin(states)

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        attended = layer.sa_layer_norm(layer.attention.out_lin(context) + states)
        output: Tensor = layer.output_layer_norm(layer.ffn(attended) + attended)
        return output


class ModernBert(Bert):
    """ModernBERT: pre-norm layers, rotated positions, local attention in two layers of three."""

    lm_head = ("head", "decoder")
    options: dict[str, Any] = {}  # noqa: RUF012
    dropouts = ("attention_dropout", "mlp_dropout", "embedding_dropout")

    def layers(self, model: Any) -> nn.ModuleList:
        layers: nn.ModuleList = model.layers
        return layers

    def new_layer(self, layers: nn.ModuleList, config: Any) -> nn.Module:
        other = copy.deepcopy(config)
        other.num_hidden_layers, other.layer_types = 2, ["full_attention"] * 2
        return ModernBertEncoderLayer(other, 1)  # the first of a model does not normalise what it reads

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        embedded: Tensor = model.embeddings(input_ids=ids[None])[0]
        return embedded

    def position_vectors(self, model: Any, positions: Tensor) -> Tensor:
        """Nothing: the positions turn queries and keys."""
        return model.final_norm.weight.new_zeros(len(positions), model.config.hidden_size)

    def finish(self, model: Any, states: Tensor) -> Tensor:
        normalised: Tensor = model.final_norm(states)
        return normalised

    def transform(self, model: Any, states: Tensor) -> Tensor:
        changed: Tensor = model.head(states)
        return changed

    def heads(self, layer: Any) -> int:
        return int(layer.config.num_attention_heads)

    def attention_dropout(self, layer: Any) -> float:
        return float(layer.attn.attention_dropout)

    def window(self, layer: Any) -> int | None:
        return int(layer.config.sliding_window) if layer.attention_type == "sliding_attention" else None

    def query(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        (queries,) = self._projected(layer, states, 0, 1)
        return self._rotated(layer, queries, positions)

    def key_and_value(self, layer: Any, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self._projected(layer, states, 1, 3)
        return self._rotated(layer, key, positions), value

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        attended = states + layer.attn.out_drop(layer.attn.Wo(context))
        output: Tensor = attended + layer.mlp(layer.mlp_norm(attended))
        return output

    def _projected(self, layer: Any, states: Tensor, first: int, stop: int) -> tuple[Tensor, ...]:
        """Some of queries, keys and values, (k, d) each, which are rows of one matrix."""
        both, d = layer.attn.Wqkv, states.shape[1]
        part = slice(first * d, stop * d)
        bias = None if both.bias is None else both.bias[part]
        projected = nn.functional.linear(layer.attn_norm(states), both.weight[part], bias)
        return projected.split(d, dim=1)

    def _rotated(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        """RoPE (Su et al. 2021): of each head, the pairs (i, i + e / 2) turned by an angle in proportion to the position."""
        h = self.heads(layer)
        e, theta = states.shape[1] // h, getattr(layer.config, ROPE)[layer.attention_type]["rope_theta"]
        exponents = torch.arange(0, e, 2, dtype=torch.float32, device=states.device) / e
        angles = positions[:, None, None].float() / theta**exponents  # (k, 1, e / 2)
        left, right = states.view(-1, h, e).to(torch.promote_types(states.dtype, torch.float32)).chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)  # (k, h, e)
        return turned.flatten(1).to(states.dtype)


_BERT, _DISTILBERT, _MODERNBERT = (
    Bert(BertForMaskedLM),
    DistilBert(DistilBertForMaskedLM),
    ModernBert(ModernBertForMaskedLM),
)
FAMILIES: dict[str, Bert] = {  # by the library's model_type
    "bert": _BERT,
    "roberta": Bert(RobertaForMaskedLM, counts_from_padding=True),
    "xlm-roberta": Bert(XLMRobertaForMaskedLM, counts_from_padding=True),
    "distilbert": _DISTILBERT,
    "modernbert": _MODERNBERT,
}


def family_of(layer: nn.Module) -> Bert:
    """The family that a layer is of; RoBERTa's layers are those of BERT."""
    if isinstance(layer, ModernBertEncoderLayer):
        return _MODERNBERT
    return _DISTILBERT if isinstance(layer, TransformerBlock) else _BERT
