"""LightningModules for pre-training: Condenser, coCondenser, query-as-context, masked auto-encoders and ICT."""

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from condensery.distributed import share_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast, span_contrast, weighted
from condensery.losses.cross_batch import across_processes
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.info_nce import info_nce
from condensery.losses.mlm import MaskedPrediction
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import made_for_search
from condensery.models.checkpoints.pretraining import load_condenser, load_masked_autoencoder, save_pretraining_model
from condensery.models.condenser import Condenser
from condensery.models.masked_autoencoder import Init, Kind, MaskedAutoEncoder, decoder_shape
from condensery.ranges import Count, CountOrZero, Positive, Share, Weight, check_values
from condensery.system.files import expanded
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.spans import Masking
from condensery.training.data.steps import Batch
from condensery.training.modules.encoders import EncoderModule, TowersModule, tokenizer_of
from condensery.training.modules.optimisation import PathOrName
from condensery.training.settings import Optimiser

PAIRS = {
    "document": 'SpanPairDataModule(pairs="document")',
    "passage": 'SpanPairDataModule(pairs="passage")',
    "query": "PassageQueryDataModule",
}

RETROMAE_RATE = 1e-4  # default peak learning rate for an enhanced decoder


class BackboneModule(EncoderModule):
    """Base class of pre-training modules whose model has an MLM head and further layers. Retrieval uses only the backbone."""

    trained_on = MappingProxyType({None: "SpanPairDataModule(pairs=None)", **PAIRS})
    model: Condenser | MaskedAutoEncoder

    def towers(self) -> BiEncoder:
        """Return the backbone as a bi-encoder: one tower for queries and passages."""
        return BiEncoder(self.model.encoder)

    def _save(self, folder: Path, tokenizer: PathOrName, lengths: tuple[int, int]) -> None:
        save_pretraining_model(self.model, folder, tokenizer, max(lengths))


class CondenserModule(BackboneModule):
    """Condenser pre-training (Gao and Callan 2021a, §3), or plain MLM if the model has no Condenser head.

    The gradients of a batch larger than a chunk are accumulated. Each MLM loss is a mean over the masked tokens of the whole
    batch, over all processes.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``Condenser``. With a ``Condenser`` the four
            arguments after ``tokenizer`` are ignored.
        tokenizer: folder or hub name of the tokenizer; None = the checkpoint's tokenizer.
        head_layers: number of transformer layers in the Condenser head; 0 = no head, which is plain MLM.
        skip_from: number of early backbone layers; the head reads the token states after these layers. None = half of the
            layers.
        late_mlm: whether an MLM loss at the backbone's last layer is added to the head's MLM loss.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        mlm_weight: factor of the MLM losses.
        head_steps: number of first steps in which only a new head is trained and the backbone is frozen. The learning rate
            rises and falls in these steps, and again in the remaining steps. If the checkpoint has a head, head and
            backbone are trained together in all steps.
        new_head: whether the head is randomly initialised even if the checkpoint has one. Ignored with a ``Condenser``.
        optimiser: arguments of ``TrainingModule``.

    Raises:
        UserError: the checkpoint or its tokenizer cannot be loaded, or a number is out of its range.
    """

    model: Condenser

    def __init__(
        self,
        model: PathOrName | Condenser,
        *,
        tokenizer: PathOrName | None = None,
        head_layers: CountOrZero = 2,
        skip_from: CountOrZero | None = None,
        late_mlm: bool = True,
        dropout: Share | None = None,
        mlm_weight: Weight = 1.0,
        head_steps: CountOrZero = 0,
        new_head: bool = False,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        check_values(type(self), locals())
        built = model
        if not isinstance(built, Condenser):
            source, vocabulary = _begin(built, tokenizer, optimiser)
            head = head_layers, skip_from, late_mlm
            built = load_condenser(source, vocabulary, *head, dropout, new_head=new_head).train()
        super().__init__(built, tokenizer_of(model, tokenizer), **optimiser)
        self.mlm_weight, self.head_steps, self.new_head = mlm_weight, head_steps, new_head
        self.first_steps = 0 if built.layers_loaded else head_steps
        self._remember(locals())

    def configure_optimizers(self) -> Any:
        """Make optimiser and schedule as ``TrainingModule`` does. Raise ``UserError`` if no step trains the backbone."""
        made = super().configure_optimizers()
        if self.first_steps >= self._steps:
            raise UserError(f"head_steps: {self.first_steps:,} must be below the number of all steps, {self._steps:,}")
        return made

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Run one optimisation step. In the first ``head_steps`` steps of a new head, the backbone is frozen."""
        frozen = set[nn.Parameter]()
        if self.global_step < self.first_steps:
            frozen = {weight for weight in self.parameters() if weight.requires_grad} - {*self.model.head.parameters()}
        for weight in frozen:
            weight.requires_grad = False
        try:
            return super().training_step(batch, batch_idx)
        finally:
            for weight in frozen:
                weight.requires_grad = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the checkpoint as ``TrainingModule`` does. After ``load_from_checkpoint`` the head is not new."""
        super().on_load_checkpoint(checkpoint)
        if self._trainer is None:
            self.first_steps = 0

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the MLM losses of head and backbone; there is no contrastive loss."""
        return MaskedPrediction(self.model, share_of(batch.masked), self.mlm_weight), None


class CoCondenserModule(CondenserModule):
    """coCondenser pre-training (Gao and Callan 2021b, eq. 7): MLM plus a contrastive loss over pairs of texts.

    Each text of a pair is the positive of the other text. All other texts in the batch, over all processes, are negatives.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``Condenser``.
        mlm_weight: factor of the MLM losses.
        temperature: divisor of the inner products (tau of Wu et al. 2023, eq. 5); the coCondenser paper uses no divisor.
        contrast_weight: factor of the contrastive loss (1 in the papers).
        others: further arguments of ``CondenserModule``.

    Raises:
        UserError: in the cases of ``CondenserModule``.
    """

    trained_on = MappingProxyType(PAIRS)

    def __init__(
        self,
        model: PathOrName | Condenser,
        *,
        mlm_weight: Weight = 1.0,
        temperature: Positive = 1.0,
        contrast_weight: Weight = 1.0,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, mlm_weight=mlm_weight, **others)
        self.temperature, self.contrast_weight = temperature, contrast_weight
        self._remember(locals())

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the MLM losses of head and backbone, and the contrastive loss."""
        encoder, _ = super().objective(batch)
        contrast = weighted(partial(span_contrast, temperature=self.temperature), self.contrast_weight)
        return encoder, across_processes(contrast)


class QueryAsContextModule(CoCondenserModule):
    """Query-as-context pre-training (Wu et al. 2023, §3.1): coCondenser on pairs of a passage and one of its queries.

    The objective and the arguments are those of ``CoCondenserModule``. Only the data differ; they come from
    ``PassageQueryDataModule``. The temperature of the authors' released code is 1.

    Raises:
        UserError: in the cases of ``CoCondenserModule``.
    """


class MaskedAutoEncoderModule(BackboneModule):
    """CoT-MAE (Wu et al. 2022) and RetroMAE: MLM in the encoder and in a decoder, which reads the encoder's vector.

    The loss of CoT-MAE is eq. 11 of Wu et al. 2023.

    Args:
        model: folder or hub name of a checkpoint of the BERT family; or a ``MaskedAutoEncoder``. With a
            ``MaskedAutoEncoder`` the arguments of the decoder are ignored.
        tokenizer: folder or hub name of the tokenizer; None = the checkpoint's tokenizer.
        decoder: kind of decoder: masked (CoT-MAE), causal or enhanced (RetroMAE); see ``DecoderShape``.
        decoder_layers: number of decoder layers; None = two, or one for an enhanced decoder.
        decoder_init: initial weights of the decoder: random, or last = the weights of the backbone's last layers.
        decoder_mask_rate: share of the other tokens that each position of an enhanced decoder does not see.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        mlm_weight: factor of the encoder's MLM loss.
        optimiser: arguments of ``TrainingModule``.

    Raises:
        UserError: the checkpoint or its tokenizer cannot be loaded, or a number is out of its range.
    """

    usual_rate = 4e-4
    model: MaskedAutoEncoder

    def __init__(
        self,
        model: PathOrName | MaskedAutoEncoder,
        *,
        tokenizer: PathOrName | None = None,
        decoder: Kind = "masked",
        decoder_layers: Count | None = None,
        decoder_init: Init = "random",
        decoder_mask_rate: Share = 0.5,
        dropout: Share | None = None,
        mlm_weight: Weight = 1.0,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        check_values(type(self), locals())
        built = model
        if not isinstance(built, MaskedAutoEncoder):
            shape = decoder_shape(decoder, decoder_layers, decoder_mask_rate)
            built = load_masked_autoencoder(*_begin(built, tokenizer, optimiser), shape, decoder_init, dropout).train()
        if optimiser.get("learning_rate") is None and built.shape.kind == "enhanced":
            optimiser["learning_rate"] = RETROMAE_RATE
        super().__init__(built, tokenizer_of(model, tokenizer), **optimiser)
        self.mlm_weight = mlm_weight
        self._remember(locals())

    def on_fit_start(self) -> None:
        """Check the data as ``EncoderModule`` does. Also raise ``UserError`` if the data have no input for the decoder."""
        super().on_fit_start()
        masking = getattr(self._data, "masking", None)
        if isinstance(masking, Masking) and masking.decoder is None:
            raise UserError(
                "MaskedAutoEncoderModule: the data module has no texts for the decoder; give it, for example,"
                ' decoder=ContextMasking("partner", both=True, rate=0.45)'
            )

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the MLM losses of encoder and decoder, each a mean over its own predicted tokens."""
        counts = {"mlm_late": share_of(batch.masked), "mlm_context": share_of(batch.context_masked)}
        return MaskedPrediction(self.model, counts, {"mlm_late": self.mlm_weight, "mlm_context": 1.0}), None


class InverseClozeModule(TowersModule):
    """The inverse cloze task, ICT (Lee et al. 2019; Gao and Callan 2021a, §4.4): match a sentence with its passage.

    The other passages of the batch are the negatives. Row 2i of a batch is a passage, and row 2i + 1 is the sentence that
    was taken from it. ``SpanPairDataModule(pairs="sentence")`` makes such batches.

    Args:
        model: see ``TowersModule``.
        temperature: divisor of the inner products.
        others: further arguments of ``TowersModule``.

    Raises:
        UserError: the checkpoint cannot be loaded, or a number is out of its range.
    """

    trained_on = MappingProxyType({"sentence": 'SpanPairDataModule(pairs="sentence")'})

    def __init__(self, model: PathOrName | BiEncoder, *, temperature: Positive = 1.0, **others: Any) -> None:
        check_values(type(self), locals())
        super().__init__(model, **others)
        self.temperature = temperature
        self._remember(locals())

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and InfoNCE over the passages of all processes."""
        return self.model, across_processes(self._contrast)

    def _contrast(self, vectors: Tensor) -> Tensor:
        passages, sentences = vectors[0::2], vectors[1::2]  # (n, d) each
        own = torch.arange(len(passages), device=vectors.device)  # (n,)
        return info_nce(sentences, passages, own, temperature=self.temperature)


def _begin(source: PathOrName, tokenizer: PathOrName | None, optimiser: Optimiser) -> tuple[PathOrName, Vocabulary]:
    """Return a checkpoint's folder or hub name, and its vocabulary. Set the seed for weights that the checkpoint lacks."""
    torch.manual_seed(optimiser.get("seed", 42))
    if made := made_for_search(checkpoint_folder(source, key="model")):
        print(f"{source}: a trained retriever ({made}); the saved model uses only the state of [CLS]", flush=True)
    return expanded(source) if expanded(source).is_dir() else source, Vocabulary.of(load_tokenizer(tokenizer or source))
