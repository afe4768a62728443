"""Masked auto-encoders (CoT-MAE, RetroMAE): a shallow decoder reconstructs a text and depends on the CLS vector.

The decoder's input text is called the context.

Symbols in shapes: b rows of a chunk, t width of the rows' contexts, n packed tokens, k predicted tokens (at most m per row),
d hidden size.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.errors import UserError
from condensery.models.encoder import transformer_layers
from condensery.models.packing import LayerStates, PackedLayout
from condensery.models.pretraining import PretrainingModel, with_cls
from condensery.tokens.batches import Chunk

Kind = Literal["masked", "causal", "enhanced"]
Init = Literal["random", "last"]


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder. The first input of a decoder is the encoder's CLS vector h, followed by the context's tokens.

    Attributes:
        kind: the inputs and targets of the decoder.
            ``masked``: [h ; context with masked tokens]. Each token sees all tokens, and the masked tokens are predicted
            (CoT-MAE: Wu et al. 2022; eq. 8-10 of Wu et al. 2023).
            ``causal``: [h ; context]. Each token sees the tokens before it and predicts the next token. In the released code
            of query-as-context the layers are GPT-2 blocks; here they have the shape of the backbone's layers.
            ``enhanced``: the attention query of each predicted token is computed from h and the token's position only. This
            query attends to h and a random sample of the other tokens (RetroMAE: Xiao et al. 2022, §3.3).
        layers: number of transformer layers (N); must be 1 if the kind is ``enhanced``.
        mask_rate: fraction of the other tokens that a position of an enhanced decoder does not see; ignored by the other
            kinds.
    """

    kind: Kind
    layers: int
    mask_rate: float = 0.5

    def check(self, depth: int, init: Init) -> None:
        """Raise ``UserError`` for an invalid shape, or if a backbone of ``depth`` layers is too small for ``init``."""
        if self.layers < 1 or (self.kind == "enhanced" and self.layers != 1):
            wanted = "exactly one layer" if self.kind == "enhanced" else "at least one layer"
            raise UserError(f"a decoder of kind {self.kind} has {wanted}, not {self.layers}")
        if init == "last" and self.layers > depth:
            raise UserError(f"a decoder of {self.layers} layers cannot copy the last layers of a backbone of {depth}")
        if not 0.0 <= self.mask_rate <= 1.0:
            raise UserError(f"the decoder's mask_rate must be a share from 0 to 1, not {self.mask_rate}")


def decoder_shape(kind: Kind, layers: int | None = None, mask_rate: float = 0.5) -> DecoderShape:
    """Return the decoder's shape. ``layers`` None = the papers' number: one for ``enhanced``, otherwise two."""
    return DecoderShape(kind, (1 if kind == "enhanced" else 2) if layers is None else layers, mask_rate)


class MaskedAutoEncoder(PretrainingModel):
    """A masked language model with a decoder that predicts the tokens of each row's context from the context and CLS vector.

    The losses are those of Wu et al. 2023, eq. 7-11.

    Attributes:
        span: number of tokens that a token of a causal decoder sees, counting itself but not the CLS vector; None = itself
            and all tokens before it.
    """

    span: int | None = None

    def __init__(self, language_model: PreTrainedModel, shape: DecoderShape, init: Init = "random") -> None:
        """Wrap a masked language model of transformers.

        Args:
            language_model: the backbone with its LM head.
            shape: shape of the decoder.
            init: initial weights of the decoder: random, or copies of the backbone's last layers.
        """
        super().__init__(language_model)
        layers: Any = self.encoder.layers
        shape.check(len(layers), init)
        self.shape = shape
        self.decoder: nn.ModuleList = (
            self.new_layers(shape.layers) if init == "random" else copy.deepcopy(layers[len(layers) - shape.layers :])
        )

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the late CLS vectors (b, d), and for each loss the cross-entropy of every predicted token.

        ``mlm_late`` is the encoder's loss at the chunk's masked tokens (Wu et al. 2023, eq. 4). ``mlm_context`` is the
        decoder's loss at the masked tokens of the context (eq. 10). The first token of a context's row must not be masked.

        Raises:
            ValueError: the chunk has no context, or the chunk or its context has no targets.
        """
        context = chunk.context
        if chunk.targets is None or context is None or context.targets is None:
            raise ValueError("a chunk for an auto-encoder needs masked positions and targets, and a context with them")
        layout = PackedLayout(chunk)
        assert layout.masked is not None
        hidden, _ = self.encoder(layout, layout.cls, layout.masked)
        cls = hidden[: len(chunk)]  # (b, d)
        states = {"mlm_late": hidden[len(chunk) :], "mlm_context": self.decode(cls, context)}
        return cls, self.cross_entropy(states, {"mlm_late": chunk.targets, "mlm_context": context.targets})

    def decode(self, cls: Tensor, context: Chunk, layers: nn.ModuleList | None = None) -> Tensor:
        """Run the decoder on [vector of the row (b, d) ; context]; return the states (k, d) of the predicted tokens.

        ``layers``: the layers of another decoder of the same shape; None = the layers of the model's own decoder.
        """
        assert context.masked is not None
        causal = self.shape.kind == "causal"
        layout = PackedLayout(replace(context, masked=context.masked - 1) if causal else context)
        embedded = with_cls(self.encoder.embed(layout), layout, cls)  # (n, d)
        visible, read = None, layout.masked
        assert read is not None
        if causal:
            # padding follows the tokens of a row, so the causal mask hides the padding from these tokens
            seen = causal_mask(layout.tokens.width, self.span, cls.device)  # (t, t)
            visible, read = seen[None, None], replace(read, visible=_by_row(read, seen[layout.positions[read.index]]))
        elif self.shape.kind == "enhanced":
            read = self._enhanced(layout, read, cls, context.masked)
        states = transformer_layers(layers or self.decoder, embedded, layout.tokens, visible, read)
        return self.encoder.finish(states)

    def _enhanced(self, layout: PackedLayout, read: LayerStates, cls: Tensor, masked: Tensor) -> LayerStates:
        """Return RetroMAE's attention queries (CLS vector plus position embedding), each with a random sample of keys.

        The sample is drawn from torch's default generator after the encoder's dropout, so the gradient cache replays it.
        """
        place = layout.positions[read.index]  # (k,)
        positions = self.encoder.position_vectors(place)  # (k, d)
        visible = _by_row(read, sampled_sets(place, layout.tokens.width, 1.0 - self.shape.mask_rate))
        if layout.tokens.padding is not None:
            visible = visible & layout.tokens.padding
        rows = torch.div(masked, layout.tokens.width, rounding_mode="floor")  # (k,)
        return replace(read, states=cls.index_select(0, rows) + positions, visible=visible)


def causal_mask(width: int, span: int | None, device: torch.device) -> Tensor:
    """Return the attention mask, bool (t, t). A token sees the first token, itself and the ``span - 1`` tokens before it.

    ``span`` None = a token sees itself and all tokens before it.
    """
    place = torch.arange(width, device=device)  # (t,)
    back = place[:, None] - place  # (t, t)
    return (back >= 0) if span is None else (back >= 0) & ((back < span) | (place == 0))


def sampled_sets(places: Tensor, width: int, keep: float) -> Tensor:
    """Draw, for each predicted token, the tokens of the row that it sees: (k, t) bool.

    The predicted tokens are at ``places`` (k,) in rows of ``width`` t. A predicted token sees every other token with
    probability ``keep``, drawn independently. It always sees the first token, and never sees itself (Xiao et al. 2022, §3.3).
    """
    visible = torch.rand(len(places), width, device=places.device) < keep
    visible.scatter_(1, places[:, None], False)
    visible[:, :1] = True
    return visible


def _by_row(read: LayerStates, visible: Tensor) -> Tensor:
    """Pad the visible keys (k, t) of each read token to ``attend``'s shape, (b, 1, m, t). Padding sees the first key."""
    padded = read.packing.pad(visible)  # (b, m, t)
    padded[:, :, :1] = True  # the softmax of a query needs one visible key
    return padded[:, None]
