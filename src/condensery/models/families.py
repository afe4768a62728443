"""The encoder families: where the parts of a transformers model are, and the computations around attention.

BERT and RoBERTa are post-norm and have position embeddings. DistilBERT is like BERT, but has no token types. ModernBERT
(Warner et al. 2024) is pre-norm and rotates queries and keys by their positions (RoPE). In two of every three ModernBERT
layers a token sees only nearby tokens. MPNet (Song et al. 2020) adds a bias to each attention score; the bias depends on
the distance between the two tokens. ELECTRA (Clark et al. 2020) may have embeddings of another size than its states.

Symbols in shapes: n tokens, k queries, d hidden size, h heads, e = d / h.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetLayer

ROPE = "rope_parameters"


def _added(output: Any, states: Tensor, residual: Tensor) -> Tensor:
    """Apply BERT's output module ``output`` in inference. The sum overwrites the product, so it needs no new memory."""
    product, norm = output.dense(states), output.LayerNorm
    if product.device.type != "cuda":
        same = product.dtype == residual.dtype  # under autocast they differ
        return norm(product.add_(residual) if same else product + residual)
    shape, weight, bias = norm.normalized_shape, norm.weight.to(product.dtype), norm.bias.to(product.dtype)
    with torch.autocast("cuda", enabled=False):  # autocast would normalise in fp32 and return fp32
        return nn.functional.layer_norm(product.add_(residual), shape, weight, bias, norm.eps)


def _activated(intermediate: Any, states: Tensor) -> Tensor:
    """Apply BERT's intermediate module in inference. GELU overwrites its input, which takes most of a layer's memory."""
    product, activation = intermediate.dense(states), intermediate.intermediate_act_fn
    exact = getattr(activation, "act", None) is nn.functional.gelu
    return torch.ops.aten.gelu_(product) if exact else activation(product)


class Bert:
    """BERT and RoBERTa, whose parts have the same names. The other families are subclasses.

    Attributes:
        lm_head: prefixes of the tensor names of the MLM head.
        options: arguments with which transformers' ``AutoModel`` builds the backbone alone, without a pooler.
        dropouts: config entries that are dropout rates.
        counts_from_padding: whether positions are counted from the id of the padding token + 1.
        biased: whether ``bias`` is added to the attention scores.
        projections: names of the projections to queries, keys and values in the attention module.
    """

    biased = False
    projections = ("query", "key", "value")
    lm_head: tuple[str, ...] = ("cls.predictions", "lm_head")
    options: dict[str, Any] = {"add_pooling_layer": False}  # noqa: RUF012
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    def __init__(self, counts_from_padding: bool = False) -> None:
        self.counts_from_padding = counts_from_padding

    def offset(self, config: Any) -> int:
        """Return the index of the first position's embedding in the table of position embeddings."""
        return config.pad_token_id + 1 if self.counts_from_padding else 0

    def layers(self, model: Any) -> nn.ModuleList:
        """Return the layers of a backbone, in the order in which they run."""
        return model.encoder.layer

    def new_layer(self, layers: nn.ModuleList, config: Any) -> nn.Module:
        """Return a new layer with full attention, in which every token sees all tokens of its row."""
        return type(layers[0])(config)

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """Return the input (n, d) of the first layer, from token ids, positions and token types, (n,) each."""
        further = {}
        if types is not None and model.config.type_vocab_size > 1:  # RoBERTa has a single type, some families have none
            further = {"token_type_ids": types[None]}
        at = positions[None] + self.offset(model.config)
        return model.embeddings(input_ids=ids[None], position_ids=at, **further)[0]

    def position_vectors(self, model: Any, positions: Tensor) -> Tensor:
        """Return the embeddings (k, d) of positions (k,)."""
        return model.embeddings.position_embeddings(positions + self.offset(model.config))

    def finish(self, model: Any, states: Tensor) -> Tensor:
        """Apply the final normalisation, if the family has one, to states (k, d) of the last layer. The shape is kept."""
        return states

    def transform(self, model: Any, states: Tensor) -> Tensor:
        """Apply the LM head's transform, which precedes the vocabulary projection, to states (k, d). The shape is kept."""
        if hasattr(model, "cls"):
            return model.cls.predictions.transform(states)
        return model.lm_head.layer_norm(nn.functional.gelu(model.lm_head.dense(states)))

    def attention(self, layer: Any) -> Any:
        """Return the attention module of a layer."""
        return layer.attention.self

    def heads(self, layer: Any) -> int:
        """Return the number h of attention heads of a layer."""
        return int(self.attention(layer).num_attention_heads)

    def attention_dropout(self, layer: Any) -> float:
        """Return the dropout rate of the attention weights in training."""
        return float(self.attention(layer).dropout.p)

    def window(self, layer: Any) -> int | None:
        """Return the largest distance, in tokens, that attention spans; None = unlimited."""
        return None

    def bias(self, layer: Any, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias of the attention scores, (b, h, m, t), from positions of queries (b, m) and of keys (t,)."""
        raise NotImplementedError

    def query(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        """Return the queries (k, d) of states (k, d) at positions (k,) in their rows."""
        return getattr(self.attention(layer), self.projections[0])(states)

    def key_and_value(self, layer: Any, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values, (n, d) each, of states (n, d) at positions (n,) in their rows."""
        key, value = (getattr(self.attention(layer), name) for name in self.projections[1:])
        return key(states), value(states)

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        """Return a layer's output (k, d) from the attention result ``context`` (k, d) and the layer's input (k, d)."""
        if torch.is_inference_mode_enabled() and not layer.training:
            attended = _added(layer.attention.output, context, states)
            return _added(layer.output, _activated(layer.intermediate, attended), attended)
        attended = layer.attention.output(context, states)
        return layer.output(layer.intermediate(attended), attended)


class Electra(Bert):
    """ELECTRA: BERT's layers. If embeddings and states differ in size, the embeddings are projected."""

    lm_head = ("generator_predictions", "generator_lm_head")
    options: dict[str, Any] = {}  # noqa: RUF012

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        return self._projected(model, super().embed(model, ids, positions, types))

    def position_vectors(self, model: Any, positions: Tensor) -> Tensor:
        return self._projected(model, super().position_vectors(model, positions))

    def transform(self, model: Any, states: Tensor) -> Tensor:
        return model.generator_predictions(states)

    def _projected(self, model: Any, embeddings: Tensor) -> Tensor:
        return model.embeddings_project(embeddings) if hasattr(model, "embeddings_project") else embeddings


class MPNet(Bert):
    """MPNet: BERT's layers under other names, without token types. All layers share one bias of the attention scores."""

    biased = True
    projections = ("q", "k", "v")

    def offset(self, config: Any) -> int:
        return 2  # whatever the padding token's id is

    def layers(self, model: Any) -> nn.ModuleList:
        for layer in model.encoder.layer:  # in ``__dict__``, so that torch registers the bias in the encoder only
            layer.__dict__["relative_bias"] = model.encoder.relative_attention_bias
        return model.encoder.layer

    def new_layer(self, layers: nn.ModuleList, config: Any) -> nn.Module:
        made = super().new_layer(layers, config)
        made.__dict__["relative_bias"] = layers[0].relative_bias
        return made

    def attention(self, layer: Any) -> Any:
        return layer.attention.attn

    def bias(self, layer: Any, queries: Tensor, keys: Tensor) -> Tensor:
        buckets = MPNetEncoder.relative_position_bucket(keys - queries[..., None])  # (b, m, t)
        return layer.relative_bias(buckets).permute(0, 3, 1, 2)  # (b, h, m, t)

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        own = layer.attention
        attended = own.LayerNorm(own.dropout(own.attn.o(context)) + states)
        return layer.output(layer.intermediate(attended), attended)


class DistilBert(Bert):
    """DistilBERT: BERT's layers under other names, without token types."""

    lm_head = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    options: dict[str, Any] = {}  # noqa: RUF012
    dropouts = ("dropout", "attention_dropout")
    projections = ("q_lin", "k_lin", "v_lin")

    def attention(self, layer: Any) -> Any:
        return layer.attention

    def layers(self, model: Any) -> nn.ModuleList:
        return model.transformer.layer

    def transform(self, model: Any, states: Tensor) -> Tensor:
        return model.vocab_layer_norm(model.activation(model.vocab_transform(states)))

    def heads(self, layer: Any) -> int:
        return int(layer.attention.n_heads)

    def rest(self, layer: Any, context: Tensor, states: Tensor) -> Tensor:
        attended = layer.sa_layer_norm(layer.attention.out_lin(context) + states)
        return layer.output_layer_norm(layer.ffn(attended) + attended)


class ModernBert(Bert):
    """ModernBERT: pre-norm layers, rotated positions, local attention in two layers of three."""

    lm_head = ("head", "decoder")
    options: dict[str, Any] = {}  # noqa: RUF012
    dropouts = ("attention_dropout", "mlp_dropout", "embedding_dropout")

    def layers(self, model: Any) -> nn.ModuleList:
        return model.layers

    def new_layer(self, layers: nn.ModuleList, config: Any) -> nn.Module:
        other = copy.deepcopy(config)
        other.num_hidden_layers, other.layer_types = 2, ["full_attention"] * 2
        return ModernBertEncoderLayer(other, 1)  # layer 1, since layer 0 of a model does not normalise its input

    def embed(self, model: Any, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        return model.embeddings(input_ids=ids[None])[0]

    def position_vectors(self, model: Any, positions: Tensor) -> Tensor:
        """Return zeros (k, d), because ModernBERT rotates queries and keys by position instead."""
        return model.final_norm.weight.new_zeros(len(positions), model.config.hidden_size)

    def finish(self, model: Any, states: Tensor) -> Tensor:
        return model.final_norm(states)

    def transform(self, model: Any, states: Tensor) -> Tensor:
        return model.head(states)

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
        return attended + layer.mlp(layer.mlp_norm(attended))

    def _projected(self, layer: Any, states: Tensor, first: int, stop: int) -> tuple[Tensor, ...]:
        """Return the projections ``first`` to ``stop`` - 1, (k, d) each: 0 = queries, 1 = keys, 2 = values.

        The projections of queries, keys and values are consecutive rows of one weight matrix.
        """
        both, d = layer.attn.Wqkv, states.shape[1]
        part = slice(first * d, stop * d)
        bias = None if both.bias is None else both.bias[part]
        return nn.functional.linear(layer.attn_norm(states), both.weight[part], bias).split(d, dim=1)

    def _rotated(self, layer: Any, states: Tensor, positions: Tensor) -> Tensor:
        """Apply RoPE (Su et al. 2021) to states (k, d): (k, d).

        The pair of dimensions (i, i + e / 2) of each head is rotated. The angle of pair i at position m is
        m / theta^(2i / e).
        """
        h = self.heads(layer)
        e, theta = states.shape[1] // h, getattr(layer.config, ROPE)[layer.attention_type]["rope_theta"]
        exponents = torch.arange(0, e, 2, dtype=torch.float32, device=states.device) / e  # (e / 2,)
        angles = positions[:, None, None].float() / theta**exponents  # (k, 1, e / 2)
        left, right = states.view(-1, h, e).to(torch.promote_types(states.dtype, torch.float32)).chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)  # (k, h, e)
        return turned.flatten(1).to(states.dtype)


_BERT, _DISTILBERT, _MODERNBERT, _MPNET = Bert(), DistilBert(), ModernBert(), MPNet()
FAMILIES: dict[str, Bert] = {  # transformers' model_type -> family
    "bert": _BERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), Bert(counts_from_padding=True)),
    "electra": Electra(),
    "mpnet": _MPNET,
    "distilbert": _DISTILBERT,
    "modernbert": _MODERNBERT,
}


def family_of(layer: nn.Module) -> Bert:
    """Return the family of a layer. Layers of RoBERTa and ELECTRA count as BERT layers."""
    kinds = {ModernBertEncoderLayer: _MODERNBERT, TransformerBlock: _DISTILBERT, MPNetLayer: _MPNET}
    return kinds.get(type(layer), _BERT)
