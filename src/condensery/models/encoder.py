"""The encoder: a Hugging Face BERT or RoBERTa, run so that nothing is computed which nobody reads.

The parameters, their names and the checkpoint format are the library's; only the forward pass is ours. The last layer
of a stack is computed at the positions that are asked for (CLS, the masked tokens), which gives the same numbers there
for about a third of that layer's cost.

Notation: b spans in a chunk, t padded tokens, m selected positions a span, d hidden size, h heads, e = d / h.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.errors import UserError
from condensery.models.dropout import dropout, use_cheap_dropout
from condensery.tokens.batches import Chunk


def attend(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, p: float) -> Tensor:
    """Softmax attention with dropout ``p`` on its weights.

    Shape:
        query (b, h, m, e); key and value (b, h, t, e); padding (b, 1, 1, t) True = a real token, or None where no row
        is padded; the result (b, h, m, e).

    On a CPU plain matrix products beat the fused kernel, in fp32 by a fifth and in the bf16 backward pass by 2.5 times.
    """
    if query.device.type != "cpu":
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=padding, dropout_p=p)
    scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(-1, -2))  # (b, h, m, t)
    if padding is not None:
        scores = scores.masked_fill(~padding, torch.finfo(scores.dtype).min)
    weights = dropout(scores.softmax(dim=-1), p, training=p > 0.0)
    return torch.matmul(weights.to(value.dtype), value)


def transformer_layer(layer: Any, hidden: Tensor, padding: Tensor | None, *selected: Tensor) -> Tensor:
    """One post-LN transformer layer of the BERT family, at all positions or at the selected ones.

    Args:
        layer: a ``BertLayer`` or ``RobertaLayer`` (its modules are used, not its forward).
        hidden: (b, t, d).
        padding: see ``attend``.
        selected: (b, m_1), (b, m_2), ... positions to compute, one part after the other; none = all t.

    Returns:
        (b, m_1 + m_2 + ..., d), or (b, t, d) where nothing is selected. The dropout of a part depends on the parts
        before it, not on those behind it.
    """
    attention = layer.attention.self
    heads, size = attention.num_attention_heads, attention.attention_head_size
    b, t, d = hidden.shape
    key = attention.key(hidden).view(b, t, heads, size).transpose(1, 2)
    value = attention.value(hidden).view(b, t, heads, size).transpose(1, 2)
    p = attention.dropout.p if layer.training else 0.0
    asked = [hidden.gather(1, part.unsqueeze(-1).expand(-1, -1, d)) for part in selected] or [hidden]
    parts = []
    for states in asked:  # (b, m, d)
        query = attention.query(states).view(b, -1, heads, size).transpose(1, 2)
        context = attend(query, key, value, padding, p).transpose(1, 2).reshape(b, -1, d)  # (b, m, d)
        attended = layer.attention.output(context, states)
        parts.append(layer.output(layer.intermediate(attended), attended))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def padding_mask(chunk: Chunk) -> Tensor | None:
    """(b, 1, 1, t) True at real tokens; None where the rows have one length, so that attention needs no mask."""
    if int(chunk.lengths.min()) == chunk.input_ids.shape[1]:
        return None
    return chunk.attention_mask[:, None, None, :]


class Selection:
    """Which positions of a chunk are read from the last layer: CLS of every span, and its masked tokens.

    Attributes:
        positions: (b, m) positions in each span; column 0 is CLS, unused columns repeat it.
        flat: (k,) where the k masked tokens of the chunk, in the chunk's order, stand in the flattened (b * m) result.
    """

    def __init__(self, chunk: Chunk, masked: bool) -> None:
        b, t = chunk.input_ids.shape
        if not masked or chunk.masked is None or len(chunk.masked) == 0:
            self.positions = chunk.input_ids.new_zeros((b, 1))
            self.flat = chunk.input_ids.new_zeros(0)
            return
        rows = torch.div(chunk.masked, t, rounding_mode="floor")  # ascending
        counts = torch.bincount(rows, minlength=b)
        first = counts.cumsum(0) - counts
        column = torch.arange(len(rows), device=rows.device) - first[rows] + 1
        self.positions = chunk.input_ids.new_zeros((b, int(counts.max()) + 1))
        self.positions[rows, column] = chunk.masked % t
        self.flat = rows * self.positions.shape[1] + column

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """``positions`` as CLS (b, 1) and the rest (b, m - 1), where there is a rest.

        CLS goes through the last layer first and by itself, so that its dropout is the same whether the masked tokens
        are read too or not: the gradient cache relies on it.
        """
        rest = self.positions.shape[1] - 1
        return self.positions.split([1, rest], dim=1) if rest else (self.positions,)

    def masked(self, hidden: Tensor) -> Tensor:
        """The states of the masked tokens, (b, m, d) -> (k, d)."""
        return hidden.flatten(0, 1)[self.flat]


class Encoder(nn.Module):
    """A BERT or RoBERTa backbone: ids to hidden states and CLS vectors.

    Attributes:
        longest: tokens of the longest row that it can read.
    """

    model: Any  # a PreTrainedModel; its parts are reached by name

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        use_cheap_dropout(model)
        # RoBERTa counts positions from behind the padding's
        offset = 0 if model.config.model_type == "bert" else model.config.pad_token_id + 1
        self.longest = int(model.config.max_position_embeddings) - offset

    def forward(self, chunk: Chunk, selection: Selection, skip: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Run the stack.

        Args:
            chunk: b spans of t padded tokens.
            selection: the positions to read from the last layer.
            skip: also return the states after this many layers (the early layer L^e), before the last.

        Returns:
            last layer at the selected positions (b, m, d), and the skip states (b, t, d) or None.

        Raises:
            UserError: the rows are longer than the backbone has positions.
        """
        if chunk.input_ids.shape[1] > self.longest:
            raise UserError(
                f"a row of {chunk.input_ids.shape[1]} tokens does not fit a backbone with {self.longest}"
                " positions; lower length (or query_length, passage_length), or raise backbone.max_positions"
            )
        padding = padding_mask(chunk)
        hidden = self.model.embeddings(input_ids=chunk.input_ids)  # (b, t, d)
        early = hidden if skip == 0 else None
        layers = self.model.encoder.layer
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            hidden = transformer_layer(layer, hidden, padding, *(selection.parts if last else ()))
            if index + 1 == skip:
                early = hidden
        return hidden, early

    def cls(self, chunk: Chunk) -> Tensor:
        """The vector of each span: its CLS state after the last layer, (b, d). No pooling layer (SPEC §4)."""
        hidden, _ = self(chunk, Selection(chunk, masked=False))
        return hidden[:, 0]
