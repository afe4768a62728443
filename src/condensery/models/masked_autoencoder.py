"""Masked auto-encoders (CoT-MAE, RetroMAE): a shallow decoder that needs the CLS vector to fill in a text.

Letters: b rows of a chunk, t the width of their contexts, n packed tokens, k predicted ones (at most m a row), d hidden
size.
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
    """The decoder; its first input is the CLS vector h of the encoder's row, the others are tokens of the context.

    Attributes:
        kind: what it reads and predicts.
            ``masked``: [h ; masked tokens], each sees all; the masked ones are predicted (CoT-MAE, Wu et al.
            2023, eq. 8-10).
            ``causal``: [h ; tokens], each sees what stands before it and predicts the next (what the released code of
            query-as-context trained, there in GPT-2 blocks, here in layers like the backbone's).
            ``enhanced``: every predicted token asks with h and its position alone, and sees h and a random sample of
            the other tokens (RetroMAE: Xiao et al. 2022, §3.3).
        layers: transformer layers (N); one where it is enhanced.
        mask_rate: the share of the other tokens that an enhanced decoder does not see; the others ignore it.
    """

    kind: Kind
    layers: int
    mask_rate: float = 0.5

    def check(self, depth: int, init: Init) -> None:
        """Raise ``UserError`` unless there is such a decoder, and a backbone of ``depth`` layers can initialise it."""
        if self.layers < 1 or (self.kind == "enhanced" and self.layers != 1):
            wanted = "exactly one layer" if self.kind == "enhanced" else "at least one layer"
            raise UserError(f"a decoder of kind {self.kind} has {wanted}, not {self.layers}")
        if init == "last" and self.layers > depth:
            raise UserError(f"a decoder of {self.layers} layers cannot start as the last of a backbone of {depth}")
        if not 0.0 <= self.mask_rate <= 1.0:
            raise UserError(f"the decoder's mask_rate is a share between 0 and 1, not {self.mask_rate}")


def decoder_shape(kind: Kind, layers: int | None = None, mask_rate: float = 0.5) -> DecoderShape:
    """The shape with as many layers as the papers have where ``layers`` is None: one enhanced, otherwise two."""
    return DecoderShape(kind, (1 if kind == "enhanced" else 2) if layers is None else layers, mask_rate)


class MaskedAutoEncoder(PretrainingModel):
    """A masked language model whose late CLS vector helps a decoder to fill in the context of each row.

    See Wu et al. 2023, eq. 7-11.
    """

    def __init__(self, language_model: PreTrainedModel, shape: DecoderShape, init: Init = "random") -> None:
        """Wrap one of the library's masked language models.

        Args:
            language_model: the backbone with its LM head.
            shape: of the decoder.
            init: the decoder's first weights: random, or those of the backbone's last layers.
        """
        super().__init__(language_model)
        layers: Any = self.encoder.layers
        shape.check(len(layers), init)
        self.shape = shape
        self.decoder: nn.ModuleList = (
            self.new_layers(shape.layers) if init == "random" else copy.deepcopy(layers[len(layers) - shape.layers :])
        )

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Late CLS vectors (b, d) and the cross-entropy of each predicted token, by loss.

        ``mlm_late`` is the encoder's at the chunk's masked tokens (Wu et al. 2023, eq. 4), ``mlm_context`` the
        decoder's at those of its context (eq. 10), of which none may be the first of its row.

        Raises:
            ValueError: the chunk or its context does not say what is predicted, or it has no context.
        """
        context = chunk.context
        if chunk.targets is None or context is None or context.targets is None:
            raise ValueError("a chunk for an auto-encoder needs masked positions and targets, and a context with them")
        layout = PackedLayout(chunk)
        assert layout.masked is not None
        hidden, _ = self.encoder(layout, layout.cls, layout.masked)
        cls = hidden[: len(chunk)]
        states = {"mlm_late": hidden[len(chunk) :], "mlm_context": self._decode(cls, context)}
        return cls, self.cross_entropy(states, {"mlm_late": chunk.targets, "mlm_context": context.targets})

    def _decode(self, cls: Tensor, context: Chunk) -> Tensor:
        """[CLS vector (b, d) ; context] -> the states (k, d) from which its masked tokens are predicted."""
        assert context.masked is not None
        causal = self.shape.kind == "causal"
        layout = PackedLayout(replace(context, masked=context.masked - 1) if causal else context)
        embedded = self.encoder.embed(layout)
        visible, read = None, layout.masked
        assert read is not None
        if causal:
            place = torch.arange(layout.tokens.width, device=cls.device)
            visible = (place <= place[:, None])[None, None]  # padding stands behind what it could disturb
            read = replace(read, visible=_by_row(read, place <= layout.positions[read.index][:, None]))
        elif self.shape.kind == "enhanced":
            read = self._enhanced(layout, read, cls, context.masked)
        states = transformer_layers(self.decoder, with_cls(embedded, layout, cls), layout.tokens, visible, read)
        return self.encoder.finish(states)

    def _enhanced(self, layout: PackedLayout, read: LayerStates, cls: Tensor, masked: Tensor) -> LayerStates:
        """The tokens to predict as RetroMAE asks for them: CLS vector + position, and each with its own sample in view.

        The sample is drawn by torch's default generator after the encoder's dropout, so the gradient cache replays it.
        """
        place = layout.positions[read.index]
        positions = self.encoder.position_vectors(place)
        visible = _by_row(read, sampled_sets(place, layout.tokens.width, 1.0 - self.shape.mask_rate))
        if layout.tokens.padding is not None:
            visible = visible & layout.tokens.padding
        rows = torch.div(masked, layout.tokens.width, rounding_mode="floor")
        return replace(read, states=cls.index_select(0, rows) + positions, visible=visible)


def sampled_sets(places: Tensor, width: int, keep: float) -> Tensor:
    """For each of the tokens at ``places`` (k,) of rows of ``width`` t: which of the row it sees, (k, t) bool.

    Each other token with probability ``keep``, independently; never itself; the first always (Xiao et al. 2022, §3.3).
    """
    visible = torch.rand(len(places), width, device=places.device) < keep
    visible.scatter_(1, places[:, None], False)
    visible[:, :1] = True
    return visible


def _by_row(read: LayerStates, visible: Tensor) -> Tensor:
    """What each read token sees (k, t), as attention wants it: (b, 1, m, t); places that nobody reads see the first."""
    padded = read.packing.pad(visible)
    padded[:, :, :1] = True  # a query that sees nothing has no softmax
    return padded[:, None]
