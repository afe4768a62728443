"""Stage ``finetune_splade``: trains SPLADE on judged queries."""

from pathlib import Path
from typing import Any

import torch

from condensery.baselines.splade.config import FinetuneSpladeConfig
from condensery.baselines.splade.model import SparseEncoder, SpladeLoss, save_sparse_encoder, start_lexically
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.models.checkpoints.backbone import load_masked_language_model, masked_language_model
from condensery.models.checkpoints.card import Described
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.training_queries import training_queries, triple_data
from condensery.stages.training import train_and_save
from condensery.text.collection import Collection
from condensery.training.data.steps import Batch
from condensery.training.data.triple_batches import TripleBatch
from condensery.training.modules.biencoder import BiEncoderModule


class SpladeModule(BiEncoderModule):
    """Trains SPLADE on ``TripleDataModule``, through the gradient cache.

    Args:
        model: the encoder.
        loss: the loss.
        others: further arguments: those of ``TrainingModule``, and ``mask_known_positives`` as in ``BiEncoderModule``.
    """

    model: SparseEncoder
    loss: SpladeLoss

    def __init__(self, model: SparseEncoder, *, loss: SpladeLoss, **others: Any) -> None:
        super().__init__(model, loss=loss, **others)

    def objective(self, batch: TripleBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the loss with the regularisation of this step."""
        self.loss.step = self.global_step
        return super().objective(batch)

    def described(self) -> Described:
        """Return the description of the vectors for the model card."""
        return Described(Path(__file__).with_name("card.md"), {}, ["sparse-encoder", "splade"])

    def _save(self, folder: Path, tokenizer: Path | str, lengths: tuple[int, int]) -> None:
        save_sparse_encoder(self.model, folder, str(tokenizer), lengths)


def _check_alive(module: SpladeModule, batch: Batch, stage: str) -> None:
    """Raise ``UserError`` if all term weights of a batch are 0, because the loss then has no gradient."""
    with torch.no_grad():
        if any((module.vectors(chunk) > 0).any() for chunk in batch.chunks):
            return
    raise UserError(
        f"stages.{stage}: all weights are 0 at the start, because no logit is above 0, so nothing could be learned; set"
        f" stages.{stage}.lexical_start to true, or init to a longer trained masked language model"
    )


def finetune(config: FinetuneSpladeConfig, context: Context) -> dict[str, Any]:
    """Train the encoder and save the last step's weights as a checkpoint; return the metrics for the manifest."""
    training = training_queries(config, context, Collection(context.input("corpus")))
    by_text = left_out_by_text(training.by_text, context.stage_name)
    data = triple_data(config, context, training, (config.query_length, config.passage_length))
    torch.manual_seed(config.seed)  # seed of a new head's weights
    if config.init == "backbone":
        language_model = masked_language_model(config.backbone, data.vocabulary, config.seed)
    else:
        start, dropout = context.input("init"), config.backbone.dropout
        language_model = load_masked_language_model(start, data.vocabulary, dropout=dropout)
    if config.lexical_start:
        start_lexically(language_model)
    loss = SpladeLoss(config.query_flops, config.passage_flops, config.ramp_steps, config.temperature)
    module = SpladeModule(SparseEncoder(language_model), loss=loss, **config.optimiser())
    _check_alive(module, data.batches.batch(0), context.stage_name)
    values = train_and_save(module, data, config, context, data.lengths)
    return {"queries": len(training.rows), **by_text, **values}
