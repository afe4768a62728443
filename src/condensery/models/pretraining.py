"""The base class of pre-training models: a backbone with its LM head, and layers that only pre-training uses."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from condensery.models.cross_entropy import projected_cross_entropy
from condensery.models.dropout import use_cheap_dropout
from condensery.models.encoder import Encoder
from condensery.models.linear import use_few_shapes
from condensery.models.packing import PackedLayout
from condensery.tokens.batches import Chunk


class PretrainingModel(nn.Module):
    """A backbone that is trained by masked language modelling, with one vocabulary projection for all losses.

    Attributes:
        encoder: the backbone.
        language_model: the transformers model, which is the backbone with its LM head (transform and tied decoder).
        layers_loaded: whether a checkpoint had the layers that only pre-training uses; false = they were initialised at
            random.
    """

    language_model: Any  # a PreTrainedModel; its parts are accessed by name
    layers_loaded: bool = False

    def __init__(self, language_model: PreTrainedModel, encoder: Encoder | None = None) -> None:
        """Wrap a masked language model of transformers, of one of ``FAMILIES``; ``encoder``: its backbone."""
        super().__init__()
        self.encoder = encoder or Encoder(language_model.base_model)
        self.language_model = language_model
        use_few_shapes(language_model)
        words: Any = language_model.get_input_embeddings()
        # With tied weights, the projection's gradient is dense. The sparse gradient of the input embeddings is added to
        # this gradient in place, at a few rows only.
        words.sparse = language_model.get_output_embeddings().weight is words.weight

    def new_layers(self, number: int) -> nn.ModuleList:
        """Return randomly initialised transformer layers with the shape of the backbone's layers."""
        family, config = self.encoder.family, copy.deepcopy(self.language_model.config)
        layers = nn.ModuleList(family.new_layer(self.encoder.layers, config) for _ in range(number))
        for layer in layers:
            layer.apply(self.language_model._init_weights)
            use_cheap_dropout(layer)
            use_few_shapes(layer)
        return layers.to(self.language_model.dtype)  # this dtype may differ from torch's default

    def vocabulary_transform(self, states: Tensor) -> Tensor:
        """Apply the LM head's transform, which precedes the vocabulary projection, to states (k, d). The shape is kept."""
        return self.encoder.family.transform(self.language_model, states)

    def cross_entropy(self, states: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each loss by name, the cross-entropy (k,) of the k predicted tokens.

        Args:
            states: name of a loss -> its states (k, d); k may be 0 and may differ between losses.
            targets: name of a loss -> the token ids (k,) that its states predict.
        """
        decoder = self.language_model.get_output_embeddings()
        losses = projected_cross_entropy(  # one projection for all losses
            self.vocabulary_transform(torch.cat(list(states.values()))),
            decoder.weight,
            decoder.weight.new_zeros(len(decoder.weight)) if decoder.bias is None else decoder.bias,
            torch.cat([targets[name] for name in states]),
        )
        return dict(zip(states, losses.split([len(part) for part in states.values()]), strict=True))

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the late CLS vectors (b, d), computed by the backbone alone."""
        return self.encoder.cls(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the result of ``vectors`` (b, d), with the same dropout, and each loss's cross-entropies by name."""
        raise NotImplementedError


class PooledLanguageModel(PretrainingModel):
    """A retriever with its checkpoint's LM head. One pass computes the retriever's vectors and the MLM loss."""

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the retriever's vectors (b, d), which are the vectors that search uses."""
        return self.encoder.vectors(chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vectors (b, d), and as ``mlm_late`` the cross-entropy (k,) at the chunk's k masked tokens."""
        assert chunk.targets is not None
        vectors, states = self.encoder.vectors_and_states(chunk)
        return vectors, self.cross_entropy({"mlm_late": states}, {"mlm_late": chunk.targets})


def with_cls(states: Tensor, layout: PackedLayout, cls: Tensor) -> Tensor:
    """Return the packed ``states`` (n, d) of b texts. Vector i of ``cls`` (b, d) replaces the first state of text i."""
    return states.index_copy(0, layout.cls.index, cls.to(states.dtype))
