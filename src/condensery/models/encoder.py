"""The encoder: a Hugging Face BERT, RoBERTa, DistilBERT or ModernBERT, run so that nothing is computed which nobody reads.

The parameters, their names and the checkpoint format are the library's; only the forward pass is ours. The last layer
of a stack is computed at the positions that are asked for (CLS, the masked tokens), which gives the same numbers there
for about a third of that layer's cost.

Notation: b spans in a chunk, t padded tokens, n packed ones, m read positions a span, d hidden size, h heads, e = d / h.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.models.dropout import dropout, use_cheap_dropout
from condensery.models.families import FAMILIES, Bert, family_of
from condensery.models.packing import LayerStates, PackedLayout, Packing
from condensery.models.pooling import dimensions, pool
from condensery.models.varlen import kernel_of
from condensery.models.vectors import VectorSettings
from condensery.tokens.batches import Chunk

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LONG = 1024  # keys of a row: in plain products their weights would take all memory


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """Softmax attention with dropout ``p`` on its weights.

    Shape:
        query (b, h, m, e); key and value (b, h, t, e); visible (b or 1, 1, m or 1, t) True = the query attends to the
        key, to one at least, or None where all attend to all; the result (b, h, m, e).

    On a CPU the fused kernel has no dropout, and its bf16 backward pass is slow. Elsewhere it is faster, most in long rows
    (``experiments/benchmarks/attention.py``).
    """
    fused = p == 0.0 and (query.dtype != torch.bfloat16 or torch.is_inference_mode_enabled() or key.shape[-2] > _LONG)
    if query.device.type != "cpu" or fused:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=p)
    return plain_attention(query, key, value, visible, p)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """``attend`` by matrix products; the weights (b, h, m, t) are kept for the backward pass."""
    scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(-1, -2))  # (b, h, m, t)
    if visible is not None:
        scores = scores.masked_fill_(~visible, torch.finfo(scores.dtype).min)
    weights = dropout(scores.softmax(dim=-1), p, training=p > 0.0)
    return torch.matmul(weights.to(value.dtype), value)


def transformer_layer(
    layer: Any, hidden: Tensor, tokens: Packing, visible: Tensor | None, *read: LayerStates
) -> Tensor:
    """One transformer layer, at all tokens or at those that are read.

    Args:
        layer: of one of the library's models in ``FAMILIES`` (its modules are used, not its forward).
        hidden: (n, d), packed.
        tokens: how they stand in their rows.
        visible: which tokens attend to which, see ``attend``; None = each to all of its row. A part may say otherwise for
            its own.
        read: the tokens to compute, one part of k_i tokens after the other; none = all n.

    Returns:
        (k_1 + k_2 + ..., d), or (n, d) where nothing is named. The dropout of a part depends on the parts before it, not
        on those behind it.
    """
    family = family_of(layer)
    memory = _Memory(family, layer, hidden, tokens)
    p = family.attention_dropout(layer) if layer.training else 0.0
    query_parts = [_queries(hidden, visible, part) for part in read] or [(hidden, tokens, visible)]
    parts = []
    for states, packing, seen in query_parts:  # (k, d)
        context = memory.attended(family.query(layer, states, packing.positions), packing, seen, p)
        parts.append(_REST.get()(layer, context, states))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def rest_of_layer(layer: Any, context: Tensor, states: Tensor) -> Tensor:
    """What follows attention, token by token: from what each state (k, d) was told (k, d) to the layer's output (k, d)."""
    return family_of(layer).rest(layer, context, states)


Rest = Callable[[Any, Tensor, Tensor], Tensor]
_REST: ContextVar[Rest] = ContextVar("rest of a layer", default=rest_of_layer)


@contextmanager
def compiled(backend: str = "inductor") -> Iterator[None]:
    """Meanwhile layers run compiled behind their attention, which has kernels of its own, for any number of tokens.

    The same numbers but for rounding and the draws of dropout, which the gradient cache replays as ever.
    Raises ``UserError`` where torch cannot compile.
    """
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    compiled_rest = torch.compile(rest_of_layer, backend=backend, dynamic=True)

    def rest(layer: Any, context: Tensor, states: Tensor) -> Tensor:
        # what is a view of something is compiled for each kind of view; these no longer are for torch
        own = (torch.ops.aten._unsafe_view(part, part.shape) for part in (context, states))
        output: Tensor = compiled_rest(layer, *own)
        return output

    token = _REST.set(rest)
    try:
        yield
    except TorchDynamoException as error:
        reason = [*str(error).strip().splitlines(), type(error).__name__][0]
        raise UserError(f"trainer.compile: torch cannot compile here ({reason}); set it to false") from None
    finally:
        _REST.reset(token)


class _Memory:
    """The keys and values (n, d) of a layer, packed, and in their rectangle where a query needs that."""

    def __init__(self, family: Bert, layer: Any, hidden: Tensor, tokens: Packing) -> None:
        self.heads, self.tokens = family.heads(layer), tokens
        self.key, self.value = family.key_and_value(layer, hidden, tokens.positions)
        window = family.window(layer)
        self.window = window if window is not None and tokens.width > window + 1 else None  # None: all is near

    @cached_property
    def rectangle(self) -> tuple[Tensor, Tensor]:
        """Both, (b, h, t, e)."""
        return by_head(self.heads, self.key, self.tokens), by_head(self.heads, self.value, self.tokens)

    def attended(self, query: Tensor, packing: Packing, visible: Tensor | None, p: float) -> Tensor:
        """What queries (k, d) get, (k, d): by a kernel for rows of any lengths where there is one and they see all."""
        if visible is None and packing.segments and self.tokens.segments and self._for_kernel(packing):
            heads = -1, self.heads, query.shape[1] // self.heads
            if kernel := kernel_of(query.view(heads), self.window):
                key, value = self.key.view(heads), self.value.view(heads)
                return kernel(query.view(heads), key, value, packing.segments, self.tokens.segments, p).flatten(1)
        seen = self.tokens.padding if visible is None else visible
        if self.window is not None:
            seen = self._near(packing, seen, self.window)
        key, value = self.rectangle
        rows = attend(by_head(self.heads, query, packing), key, value, seen, p)
        return packing.unpad(rows.transpose(1, 2).flatten(2))

    def _for_kernel(self, packing: Packing) -> bool:
        """Kernels know a window where all tokens of a row ask."""
        return self.window is None or packing is self.tokens

    def _near(self, packing: Packing, visible: Tensor | None, window: int) -> Tensor:
        """What is visible of each query's neighbourhood, (b, 1, m, t); each sees its own place."""
        own = packing.pad(packing.positions[:, None])[..., 0]  # (b, m)
        distance = (own[:, None, :, None] - torch.arange(self.tokens.width, device=own.device)).abs()
        near = distance <= window
        return near if visible is None else near & visible | (distance == 0)


def by_head(heads: int, states: Tensor, packing: Packing) -> Tensor:
    """Packed projections (n, d) of a self-attention, in their rows and head by head: (b, h, t, e)."""
    return packing.pad(states).unflatten(-1, (heads, -1)).transpose(1, 2)


def _queries(hidden: Tensor, visible: Tensor | None, part: LayerStates) -> tuple[Tensor, Packing, Tensor | None]:
    """The states (k, d) that ask for a part, how they stand in their rows, and what they see."""
    states = hidden.index_select(0, part.index) if part.states is None else part.states
    return states, part.packing, visible if part.visible is None else part.visible


def transformer_layers(
    layers: Sequence[Any] | nn.ModuleList, hidden: Tensor, tokens: Packing, visible: Tensor | None, read: LayerStates
) -> Tensor:
    """A stack of ``transformer_layer``, the last of which is computed at the k tokens that are read: (k, d)."""
    for index, layer in enumerate(layers):
        last = index + 1 == len(layers)
        hidden = transformer_layer(layer, hidden, tokens, visible, *((read,) if last else ()))
    return hidden


class Encoder(nn.Module):
    """A backbone of one of ``FAMILIES``: ids to hidden states and vectors.

    Attributes:
        settings: how a vector is made of the states.
        head: what the pooled states go through before they are cut and normalised; empty in most retrievers.
        longest: tokens of the longest row that it can read.
    """

    model: Any  # its parts are reached by name

    def __init__(
        self, model: "PreTrainedModel", settings: VectorSettings | None = None, head: nn.Sequential | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings or VectorSettings()
        self.head = nn.Sequential() if head is None else head
        use_cheap_dropout(model)
        config: Any = model.config
        self.family = FAMILIES[config.model_type]
        self.longest = int(config.max_position_embeddings) - self.family.offset(config)

    @property
    def dimensions(self) -> int:
        """Numbers d of a vector."""
        return dimensions(int(self.model.config.hidden_size), self.head, self.settings)

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer layers, the first first."""
        return self.family.layers(self.model)

    def forward(
        self, layout: PackedLayout, *read: LayerStates, skip: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the stack.

        Args:
            layout: of a chunk of b spans.
            read: the tokens to read from the last layer, parts of ``layout``. CLS goes first and by itself, so that its
                dropout is the same whether masked tokens are read too or not: the gradient cache relies on it.
            skip: also return the states after this many layers (the early layer L^e), before the last.

        Returns:
            last layer at the tokens that are read (k_1 + k_2 + ..., d), and the skip states (n, d), packed, or None.

        Raises:
            UserError: the rows are longer than the backbone has positions.
        """
        hidden = self.embed(layout)
        early = hidden if skip == 0 else None
        layers = self.layers
        for index, layer in enumerate(layers):
            last = index + 1 == len(layers)
            hidden = transformer_layer(layer, hidden, layout.tokens, None, *(read if last else ()))
            if index + 1 == skip:
                early = hidden
        return self.finish(hidden), early

    def finish(self, states: Tensor) -> Tensor:
        """What follows the last layer of a stack, token by token, (k, d): the last normalisation where layers begin with
        theirs."""
        return self.family.finish(self.model, states)

    def embed(self, layout: PackedLayout) -> Tensor:
        """The embedding layer: words, positions, types and all else, normalised, (n, d). Errors as above."""
        if layout.tokens.width > self.longest:
            raise UserError(
                f"a row of {layout.tokens.width} tokens does not fit a backbone with {self.longest}"
                " positions; lower length (or query_length, passage_length), or raise backbone.max_positions"
            )
        return self.family.embed(self.model, layout.input_ids, layout.positions, layout.types)

    def position_vectors(self, positions: Tensor) -> Tensor:
        """The embeddings of positions (k,) of a row, (k, d); zeros where positions are not embedded."""
        return self.family.position_vectors(self.model, positions)

    def cls(self, chunk: Chunk) -> Tensor:
        """The vector of each span: its CLS state after the last layer, (b, d). No pooling layer."""
        layout = PackedLayout(chunk)
        return self(layout, layout.cls)[0]

    def vectors(self, chunk: Chunk) -> Tensor:
        """The vector of each row as ``settings`` has it, behind the layers of ``head``, (b, d)."""
        vectors = self.head(self.pooled(chunk))[:, : self.settings.truncate_dim]
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalise else vectors

    def pooled(self, chunk: Chunk) -> Tensor:
        """What ``settings`` takes of the states of each row's tokens after the last layer, (b, d); padding has no part in
        it."""
        if self.settings.pooling == "cls":
            return self.cls(chunk)
        layout = PackedLayout(chunk)
        if self.settings.pooling == "last":
            return self(layout, layout.at(chunk.lengths - 1))[0]
        states = layout.tokens.pad(self(layout)[0])  # (b, t, d); also of some padding, see PackedLayout
        return pool(states, chunk.attention_mask, chunk.lengths, self.settings.pooling)
