"""Stage ``pretrain_lexmae``: MLM with a bag of words between encoder and decoder (Shen et al. 2022).

Symbols in shapes: b rows of a chunk, n packed tokens, V tokens of the vocabulary, d hidden size.
"""

from typing import Any

from torch import Tensor

from condensery.baselines.lexmae.config import PretrainLexmaeConfig
from condensery.baselines.lexmae.masks import NestedDataModule
from condensery.baselines.splade.model import SparseEncoder, start_lexically, token_slices
from condensery.distributed import share_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.mlm import MaskedPrediction
from condensery.models.largest_logits import largest_logits
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.models.packing import PackedLayout
from condensery.ranges import check_values
from condensery.stages.base import Context
from condensery.stages.pretraining.pretrain import autoencoder, fit_and_save, span_data
from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import ContextMasking, SpanBatch
from condensery.training.modules.optimisation import PathOrName
from condensery.training.modules.pretraining import MaskedAutoEncoderModule


def bag_of_words(largest: Tensor, words: Tensor) -> Tensor:
    """Return LexMAE's bottleneck: the embeddings of the vocabulary, averaged with weights that the text's logits give.

        a = softmax over the vocabulary of (max over the tokens i between [CLS] and [SEP] of the logits of i),    a W

    Args:
        largest: (b, V) the largest logit of the MLM head over each text's tokens between [CLS] and [SEP].
        words: (V, d) the embeddings W, to which no gradient flows.

    Returns:
        (b, d), one vector for each text.
    """
    return largest.softmax(dim=1) @ words.detach()


class LexicalPrediction(MaskedPrediction):
    """``MaskedPrediction`` of an auto-encoder whose decoder reads the bag of words in place of the CLS vector."""

    model: MaskedAutoEncoder

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the CLS vectors (b, d), which no loss reads, and the chunk's contribution to each loss."""
        model, context, layout = self.model, chunk.context, PackedLayout(chunk)
        assert layout.masked is not None
        assert chunk.targets is not None
        assert context is not None
        assert context.targets is not None
        hidden, _ = model.encoder(layout)  # (n, d)
        head, words = model.language_model.get_output_embeddings(), model.language_model.get_input_embeddings()
        inner = [slice(text.start + 1, text.stop - 1) for text in token_slices(layout, chunk.lengths)]
        bag = bag_of_words(largest_logits(model.vocabulary_transform(hidden), head, inner), words.weight)
        states = {"mlm_late": hidden[layout.masked.index], "mlm_context": model.decode(bag, context)}
        losses = model.cross_entropy(states, {"mlm_late": chunk.targets, "mlm_context": context.targets})
        return hidden[layout.cls.index], {name: loss.sum() * self._scale(name) for name, loss in losses.items()}


class LexmaeModule(MaskedAutoEncoderModule):
    """LexMAE (Shen et al. 2022): MLM in an encoder and in a weak decoder, between which there is a bag of words.

    The encoder reads a text with masked tokens. The decoder reads a vector b and the same text with more masked tokens:

        a = softmax(max_i of the logits of token i),   b = a W,   L = mean CE of the encoder + mean CE of the decoder

    The maximum is over the tokens between [CLS] and [SEP]; W are the embeddings of the vocabulary, without gradient. Train it
    on ``NestedDataModule``. On ``SpanPairDataModule(pairs=None)``, the decoder's masks are independent of the encoder's.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder`` with a masked decoder.
        lexical_start: whether the MLM head initially weights only a text's own tokens (``start_lexically``).
        others: further arguments of ``MaskedAutoEncoderModule``, except ``decoder``.

    Raises:
        UserError: the model has another decoder; or as ``MaskedAutoEncoderModule``.
    """

    usual_rate = 3e-4

    def __init__(self, model: PathOrName | MaskedAutoEncoder, *, lexical_start: bool = False, **others: Any) -> None:
        check_values(type(self), locals())
        super().__init__(model, decoder="masked", **others)
        if self.model.shape.kind != "masked":
            raise UserError(f"LexmaeModule: the decoder is {self.model.shape.kind}; give a masked one")
        if lexical_start:
            start_lexically(self.model.language_model)
        self._remember(locals())

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with both losses, each a mean over its own predicted tokens of the batch."""
        counts = {"mlm_late": share_of(batch.masked), "mlm_context": share_of(batch.context_masked)}
        return LexicalPrediction(self.model, counts, {"mlm_late": self.mlm_weight, "mlm_context": 1.0}), None

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return SPLADE's weights of the texts (b, V), from the MLM head. Validation ranks passages by these weights."""
        return SparseEncoder(self.model.language_model).vectors(chunk)


def pretrain_lexmae(config: PretrainLexmaeConfig, context: Context) -> dict[str, Any]:
    """Train the encoder by MLM, and by a decoder that reads the bag of words of its logits."""
    decoder = ContextMasking("same", True, config.decoder_mask_rate)
    data = span_data(config, context, NestedDataModule, decoder=decoder)
    model = autoencoder(config, DecoderShape("masked", config.decoder_layers), context, data.vocabulary)
    own = config.values_of("lexical_start", "mlm_weight")
    return fit_and_save(LexmaeModule(model, **own, **config.optimiser()), data, config, context)
