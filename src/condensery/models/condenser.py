"""Condenser (Gao and Callan 2021): a head that can only fill in masked tokens with the help of the late CLS state."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.errors import UserError
from condensery.models.cross_entropy import projected_cross_entropy
from condensery.models.dropout import use_cheap_dropout
from condensery.models.encoder import Encoder, transformer_layer
from condensery.models.packing import Layout
from condensery.tokens.batches import Chunk


@dataclass(frozen=True)
class CondenserShape:
    """How the head is built on the backbone.

    Attributes:
        head_layers: transformer layers in the head (L^h); 0 = no head: plain masked language modelling.
        skip_from: the backbone layer whose token states the head reads (L^e); the output of that many layers.
        late_mlm: also train the backbone's last layer to fill in the masked tokens (C eq. 10).
    """

    head_layers: int
    skip_from: int
    late_mlm: bool

    def check(self, depth: int) -> None:
        """Raise ``UserError`` unless this head fits a backbone of ``depth`` layers."""
        if self.head_layers and not 0 <= self.skip_from < depth:
            raise UserError(
                f"skip_from: {self.skip_from} early layers do not split a backbone of {depth}; 0 to {depth - 1}"
            )


def condenser_shape(
    language_model: PreTrainedModel, head_layers: int, skip_from: int | None, late_mlm: bool
) -> CondenserShape:
    """The shape on this backbone; ``skip_from`` None is half of its layers (6 of 12 in the papers)."""
    depth = language_model.config.num_hidden_layers
    return CondenserShape(head_layers, depth // 2 if skip_from is None else skip_from, late_mlm)


class Condenser(nn.Module):
    """A masked language model with a Condenser head (C §3, eq. 3-11), or without one.

    The head reads [late CLS ; early token states]; its output and, with ``late_mlm``, the backbone's go through the
    same vocabulary projection (transform and tied decoder).
    """

    language_model: Any  # a PreTrainedModel; its parts are reached by name

    def __init__(self, language_model: PreTrainedModel, shape: CondenserShape) -> None:
        """Wrap a ``BertForMaskedLM`` or ``RobertaForMaskedLM``; the head starts from random weights."""
        super().__init__()
        shape.check(language_model.config.num_hidden_layers)
        self.shape = shape
        backbone: Any = language_model.base_model
        self.encoder = Encoder(backbone)
        self.language_model = language_model
        words = backbone.embeddings.word_embeddings
        # the projection gives their gradient whole; the few rows of the input are added to it in place
        words.sparse = language_model.get_output_embeddings().weight is words.weight
        block = type(backbone.encoder.layer[0])
        config = copy.deepcopy(language_model.config)
        self.head = nn.ModuleList(block(config) for _ in range(shape.head_layers))
        for layer in self.head:
            layer.apply(language_model._init_weights)
            use_cheap_dropout(layer)

    def vocabulary_transform(self, states: Tensor) -> Tensor:
        """What the LM head does to states (k, d) before it projects them, (k, d)."""
        model = self.language_model
        if hasattr(model, "cls"):  # BERT
            return model.cls.predictions.transform(states)
        return model.lm_head.layer_norm(nn.functional.gelu(model.lm_head.dense(states)))

    def vectors(self, chunk: Chunk) -> Tensor:
        """Late CLS vectors (b, d), the backbone alone."""
        return self.encoder.cls(chunk)

    def predict(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Late CLS vectors (b, d) and the cross-entropy (k,) at each of the chunk's k masked tokens, by loss.

        ``mlm_head`` is the head's (C eq. 9), ``mlm_late`` the backbone's (C eq. 10; the only one without a head).
        """
        if chunk.targets is None:
            raise ValueError("a chunk for pre-training needs masked positions and targets")
        late = self.shape.late_mlm or not self.head
        layout = Layout(chunk)
        assert layout.masked is not None
        hidden, early = self.encoder(
            layout,
            layout.cls,
            *((layout.masked,) if late else ()),
            skip=self.shape.skip_from if self.head else None,
        )
        cls = hidden[: len(chunk)]
        states = {}
        if late:
            states["mlm_late"] = hidden[len(chunk) :]
        if early is not None:
            states["mlm_head"] = self._through_head(layout, cls, early)
        decoder = self.language_model.get_output_embeddings()
        losses = projected_cross_entropy(  # one projection for both
            self.vocabulary_transform(torch.cat(list(states.values()))),
            decoder.weight,
            decoder.bias,
            chunk.targets.repeat(len(states)),
        )
        # equal parts, also of k = 0 rows
        return cls, dict(zip(states, losses.tensor_split(len(states)), strict=True))

    def _through_head(self, layout: Layout, cls: Tensor, early: Tensor) -> Tensor:
        """[late CLS (b, d) ; early tokens (n, d)] -> head states of the masked tokens (k, d)."""
        hidden = early.index_copy(0, layout.cls.index, cls.to(early.dtype))
        for index, layer in enumerate(self.head):
            last = index + 1 == len(self.head)
            hidden = transformer_layer(
                layer, hidden, layout.tokens, layout.padding, *((layout.masked,) if last and layout.masked else ())
            )
        return hidden
