"""The encoder: a model of the BERT family (``FAMILIES``) of the transformers library, with a cheaper forward pass.

Parameters, parameter names and checkpoint format are those of transformers; only the forward pass is reimplemented. The last
layer of a stack is computed only at the positions whose states are used (CLS, masked tokens). This gives the same states at
these positions, for about a third of the layer's cost.

Symbols in shapes: b rows of a chunk, t width of the chunk, n packed tokens, m query positions of a row, d hidden size,
h heads, e = d / h.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.models.dropout import dropout, use_cheap_dropout
from condensery.models.families import FAMILIES, Bert, family_of
from condensery.models.linear import use_few_shapes
from condensery.models.packing import LayerStates, PackedLayout, Packing
from condensery.models.pooling import dimensions, pool
from condensery.models.varlen import kernel_of
from condensery.models.vectors import VectorSettings
from condensery.tokens.batches import Chunk

_LONG = 1024  # number of keys per row above which the attention weights of plain matrix products take too much memory


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """Compute softmax attention, softmax(query key^T / sqrt(e)) value, with dropout ``p`` on the attention weights.

    On a CPU the fused kernel has no dropout, and its bf16 backward pass is slow, so plain matrix products are used in these
    cases. On other devices the fused kernel is faster, most of all for long rows (``experiments/benchmarks/attention.py``).

    Shape:
        query (b, h, m, e); key and value (b, h, t, e); the result (b, h, m, e). A bool ``visible``, (b or 1, 1, m or 1, t),
        is True where a query attends to a key; each query needs at least one such key. A float ``visible``,
        (b or 1, h, m, t), is added to the scores. None = all queries attend to all keys.
    """
    fused = p == 0.0 and (query.dtype != torch.bfloat16 or torch.is_inference_mode_enabled() or key.shape[-2] > _LONG)
    if query.device.type != "cpu" or fused:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=p)
    return plain_attention(query, key, value, visible, p)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """Compute ``attend`` by plain matrix products. The attention weights (b, h, m, t) are kept for the backward pass."""
    turned = key.transpose(-1, -2).contiguous()  # (b, h, e, t); a copy here is cheaper than in each product
    scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), turned)  # (b, h, m, t)
    if visible is not None:
        if not visible.is_floating_point():  # adding a bias is faster than masking the scores, with the same result
            visible = torch.where(visible, scores.new_zeros(()), torch.finfo(scores.dtype).min)
        scores = scores.add_(visible)
    weights = dropout(scores.softmax(dim=-1), p, training=p > 0.0)  # (b, h, m, t)
    return torch.matmul(weights.to(value.dtype), value)


def transformer_layer(
    layer: Any, hidden: Tensor, tokens: Packing, visible: Tensor | None, *read: LayerStates
) -> Tensor:
    """Compute one transformer layer, at all tokens or only at selected tokens.

    Args:
        layer: a layer of a transformers model in ``FAMILIES``; its modules are used, not its ``forward``.
        hidden: (n, d) packed states, the input of the layer.
        tokens: the positions of the packed tokens in their rows.
        visible: which tokens attend to which, as in ``attend``; None = each token attends to its whole row.
        read: selections of k_1, k_2, ... tokens to compute; no selection = all n tokens. A selection may have its own
            ``visible``, which then replaces the argument.

    Returns:
        (k_1 + k_2 + ..., d), or (n, d) without a selection. The selections draw their dropout masks in order, so leaving out
        the last selections does not change the earlier ones.
    """
    family = family_of(layer)
    memory = _Memory(family, layer, hidden, tokens)
    p = family.attention_dropout(layer) if layer.training else 0.0
    query_parts = [_queries(hidden, visible, part) for part in read] or [(hidden, tokens, visible)]
    parts = []
    for states, packing, seen in query_parts:  # (k, d)
        context = memory.attended(family.query(layer, states, packing.positions), packing, seen, p)  # (k, d)
        parts.append(_REST.get()(layer, context, states))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def rest_of_layer(layer: Any, context: Tensor, states: Tensor) -> Tensor:
    """Compute the token-wise part of a layer after attention: output projection, feed-forward, residuals.

    Args:
        layer: the layer.
        context: (k, d) the result of attention for each token.
        states: (k, d) the input of the layer at these tokens.

    Returns:
        (k, d) the output of the layer.
    """
    return family_of(layer).rest(layer, context, states)


Rest = Callable[[Any, Tensor, Tensor], Tensor]
_REST: ContextVar[Rest] = ContextVar("rest of a layer", default=rest_of_layer)


@contextmanager
def compiled(backend: str = "inductor") -> Iterator[None]:
    """Context manager. Inside it, the part of each layer that follows attention is compiled, for any number of tokens.

    Attention is not compiled, because it has its own kernels. Results differ from those of uncompiled layers only by
    rounding and by the dropout masks. The gradient cache replays these masks too. Raises ``UserError`` if torch cannot
    compile.
    """
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    compiled_rest = torch.compile(rest_of_layer, backend=backend, dynamic=True)

    def rest(layer: Any, context: Tensor, states: Tensor) -> Tensor:
        # torch would recompile for each kind of view among the inputs; ``_unsafe_view`` hides that they are views
        own = (torch.ops.aten._unsafe_view(part, part.shape) for part in (context, states))
        return compiled_rest(layer, *own)

    token = _REST.set(rest)
    try:
        yield
    except TorchDynamoException as error:
        reason = [*str(error).strip().splitlines(), type(error).__name__][0]
        raise UserError(f"trainer.compile: torch cannot compile here ({reason}); set it to false") from None
    finally:
        _REST.reset(token)


class _Memory:
    """The keys and values of a layer, packed (n, d). They are also padded to (b, h, t, e) if ``attend`` needs them."""

    def __init__(self, family: Bert, layer: Any, hidden: Tensor, tokens: Packing) -> None:
        self.family, self.layer = family, layer
        self.heads, self.tokens = family.heads(layer), tokens
        self.key, self.value = family.key_and_value(layer, hidden, tokens.positions)
        window = family.window(layer)
        self.window = window if window is not None and tokens.width > window + 1 else None  # None = unlimited

    @cached_property
    def rectangle(self) -> tuple[Tensor, Tensor]:
        """Padded keys and values, (b, h, t, e) each."""
        return by_head(self.heads, self.key, self.tokens), by_head(self.heads, self.value, self.tokens)

    def attended(self, query: Tensor, packing: Packing, visible: Tensor | None, p: float) -> Tensor:
        """Return the result of attention (k, d) for queries (k, d).

        If the device has a kernel for packed rows and ``visible`` is None, the kernel computes the result. Otherwise
        ``attend`` computes it on padded rows.
        """
        if visible is None and packing.segments and self.tokens.segments and self._for_kernel(packing):
            heads = -1, self.heads, query.shape[1] // self.heads
            if kernel := kernel_of(query.view(heads), self.window):
                key, value = self.key.view(heads), self.value.view(heads)
                return kernel(query.view(heads), key, value, packing.segments, self.tokens.segments, p).flatten(1)
        seen = self.tokens.padding if visible is None else visible
        if self.window is not None:
            seen = self._near(packing, seen, self.window)
        if self.family.biased:
            seen = self._biased(packing, seen, query.dtype)
        key, value = self.rectangle
        rows = attend(by_head(self.heads, query, packing), key, value, seen, p)  # (b, h, m, e)
        of_heads = _of_heads(self.heads, packing) if rows.is_contiguous() else None
        if of_heads is None:
            return packing.unpad(rows.transpose(1, 2).flatten(2))
        return of_heads.unpad(rows.flatten(0, 1)).view(query.shape)

    def _for_kernel(self, packing: Packing) -> bool:
        """Return whether kernels can be used: not with a bias, and with a window only if all tokens are queries."""
        return not self.family.biased and (self.window is None or packing is self.tokens)

    def _biased(self, packing: Packing, visible: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the bias of the scores (b or 1, h, m, t); keys that are not ``visible`` get the minimum of ``dtype``."""
        every = torch.arange(self.tokens.width, device=packing.positions.device)  # (t,)
        own = every[None] if packing is self.tokens else packing.pad(packing.positions[:, None])[..., 0]  # (b or 1, m)
        bias = self.family.bias(self.layer, own, every).to(dtype)
        return bias if visible is None else torch.where(visible, bias, torch.finfo(dtype).min)

    def _near(self, packing: Packing, visible: Tensor | None, window: int) -> Tensor:
        """Restrict ``visible`` to the window around each query: (b, 1, m, t).

        Each query, even at padding, sees its own position, because a softmax needs one visible key.
        """
        own = packing.pad(packing.positions[:, None])[..., 0]  # (b, m)
        distance = (own[:, None, :, None] - torch.arange(self.tokens.width, device=own.device)).abs()  # (b, 1, m, t)
        near = distance <= window
        return near if visible is None else near & visible | (distance == 0)


def by_head(heads: int, states: Tensor, packing: Packing) -> Tensor:
    """Pad packed projections (n, d) to rows and split them into heads: (b, h, t, e)."""
    if (of_heads := _of_heads(heads, packing)) is None:
        return packing.pad(states).unflatten(-1, (heads, -1)).transpose(1, 2)
    own = states.reshape(len(states) * heads, states.shape[1] // heads)  # (n h, e)
    return of_heads.pad(own).unflatten(0, (packing.rows, heads))


def _of_heads(heads: int, packing: Packing) -> Packing | None:
    """Return a packing for which each head of each row counts as a row of its own; None if it would save no time.

    The packing pads the states of heads (n h, e) to a matrix (b h, t, e). ``plain_attention`` then gets each head in
    contiguous memory, and its matrix products need no copy. Inference, and attention on GPUs, use fused kernels, which need
    no copy anyway.
    """
    if packing.places is None or packing.places.device.type != "cpu" or torch.is_inference_mode_enabled():
        return None
    return packing.of_heads(heads)


def _queries(hidden: Tensor, visible: Tensor | None, part: LayerStates) -> tuple[Tensor, Packing, Tensor | None]:
    """Return the query states (k, d) of a selection, their positions in their rows, and the keys visible to them."""
    states = hidden.index_select(0, part.index) if part.states is None else part.states
    return states, part.packing, visible if part.visible is None else part.visible


def transformer_layers(
    layers: Sequence[Any] | nn.ModuleList, hidden: Tensor, tokens: Packing, visible: Tensor | None, *read: LayerStates
) -> Tensor:
    """Run a stack of layers with ``transformer_layer``. The last layer runs only at the k selected tokens: (k, d)."""
    for index, layer in enumerate(layers):
        last = index + 1 == len(layers)
        hidden = transformer_layer(layer, hidden, tokens, visible, *(read if last else ()))
    return hidden


class Encoder(nn.Module):
    """A backbone of one of ``FAMILIES`` that maps token ids to hidden states and vectors.

    Attributes:
        settings: how a vector is computed from the states.
        head: the layers that follow pooling, before vectors are truncated and normalised; empty in most retrievers.
        longest: maximum row length in tokens that the backbone can read.
    """

    model: Any  # its parts are accessed by name

    def __init__(
        self, model: nn.Module, settings: VectorSettings | None = None, head: nn.Sequential | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings or VectorSettings()
        self.head = nn.Sequential() if head is None else head
        use_cheap_dropout(model)
        use_few_shapes(model)
        config: Any = model.config
        self.family = FAMILIES[config.model_type]
        self.longest = int(config.max_position_embeddings) - self.family.offset(config)

    @property
    def dimensions(self) -> int:
        """The number of dimensions d of a vector."""
        return dimensions(int(self.model.config.hidden_size), self.head, self.settings)

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer layers, in the order in which they run."""
        return self.family.layers(self.model)

    def forward(
        self, layout: PackedLayout, *read: LayerStates, skip: int | None = None, visible: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the embedding layer and all transformer layers.

        Args:
            layout: packed layout of a chunk of b rows.
            read: selections of ``layout`` to read from the last layer; no selection = all n tokens. CLS must be the first
                selection, by itself, so that its dropout does not depend on whether masked tokens are read as well. The
                gradient cache relies on this.
            skip: number of early layers (L^e), fewer than all layers, whose output states are returned as well.
            visible: which tokens attend to which, as in ``attend``; None = each token attends to its whole row.

        Returns:
            the states of the last layer at the selected tokens (k_1 + k_2 + ..., d), and the packed early states (n, d). The
            early states are None without ``skip``.

        Raises:
            UserError: the rows are longer than the backbone has positions.
        """
        hidden, layers, early = self.embed(layout), self.layers, None  # (n, d)
        if skip is not None:
            early = hidden = transformer_layers(layers[:skip], hidden, layout.tokens, visible)
            layers = layers[skip:]
        return self.finish(transformer_layers(layers, hidden, layout.tokens, visible, *read)), early

    def finish(self, states: Tensor) -> Tensor:
        """Apply a pre-norm backbone's final normalisation to states (k, d) of the last layer. The shape is kept."""
        return self.family.finish(self.model, states)

    def check_length(self, length: int, key: str) -> None:
        """Raise ``UserError`` if inputs of ``length`` tokens are longer than the backbone allows. ``key`` sets the length."""
        if length > self.longest:
            raise UserError(f"{key}: {length} is too large; the model has {self.longest} positions")

    def embed(self, layout: PackedLayout) -> Tensor:
        """Return the normalised output (n, d) of the embedding layer; not every family embeds positions and types.

        Raises:
            UserError: the rows are longer than the backbone has positions.
        """
        if layout.tokens.width > self.longest:
            raise UserError(
                f"a row of {layout.tokens.width} tokens does not fit a backbone with {self.longest}"
                " positions; lower length (or query_length, passage_length), or raise backbone.max_positions"
            )
        return self.family.embed(self.model, layout.input_ids, layout.positions, layout.types)

    def position_vectors(self, positions: Tensor) -> Tensor:
        """Return the embeddings (k, d) of positions (k,) in a row; zeros if the backbone has no position embeddings."""
        return self.family.position_vectors(self.model, positions)

    def cls(self, chunk: Chunk) -> Tensor:
        """Return the CLS state of each row after the last layer, (b, d), without a pooling layer."""
        layout = PackedLayout(chunk)
        return self(layout, layout.cls)[0]

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the vector of each row, (b, d): pool by ``settings``, apply ``head``, truncate and normalise."""
        return self.vectors_and_states(chunk, masked=False)[0]

    def vectors_and_states(self, chunk: Chunk, masked: bool = True) -> tuple[Tensor, Tensor]:
        """Return the result of ``vectors`` (b, d), with the same dropout, and the last states (k, d) at masked tokens.

        Args:
            chunk: a chunk of b rows, with k masked positions.
            masked: false = the states are not needed; k is then 0.
        """
        pooled, states = self._pooled(chunk, masked)
        vectors = self.head(pooled)[:, : self.settings.truncate_dim]
        return nn.functional.normalize(vectors, dim=-1) if self.settings.normalise else vectors, states

    def _pooled(self, chunk: Chunk, masked: bool) -> tuple[Tensor, Tensor]:
        """Return each row's pooled state (b, d), which ignores padding, and the last states at masked tokens (k, d)."""
        layout = PackedLayout(chunk)
        read = [layout.masked] if masked and layout.masked is not None else []
        if self.settings.pooling in ("cls", "last"):
            pooled = layout.cls if self.settings.pooling == "cls" else layout.at(chunk.lengths - 1)
            states = self(layout, pooled, *read)[0]
            return states[: len(chunk)], states[len(chunk) :]
        states = self(layout)[0]  # (n, d)
        padded = layout.tokens.pad(states)  # (b, t, d); on a CPU some padding has states, see ``packing._places``
        of_masked = states.index_select(0, read[0].index) if read else states[:0]
        return pool(padded, chunk.attention_mask, chunk.lengths, self.settings.pooling), of_masked
