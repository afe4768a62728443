"""Stage ``finetune_late_interaction``: trains an encoder of token vectors on judged queries."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condensery.baselines.late_interaction.config import FinetuneLateInteractionConfig
from condensery.baselines.late_interaction.model import Interaction, TokenEncoder, interaction_scores
from condensery.baselines.late_interaction.saving import new_token_encoder, save_token_encoder
from condensery.losses.info_nce import info_nce
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.checkpoints.card import Described
from condensery.ranges import Positive
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.training_queries import training_queries, triple_data
from condensery.stages.training import initial_towers, train_and_save
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.validation import ValidationSample, reciprocal_ranks


class InteractionLoss(RetrievalLoss):
    """InfoNCE over the scores of token vectors: the negative log-likelihood of the positive among the batch's passages.

    In ColBERT's paper the softmax is over the two passages of a triple (§3.3). In the papers of COIL and ME-BERT, as here,
    it is over all passages of the batch.

    Args:
        dimensions: dimensions d of a vector.
        temperature: divisor of the scores.
    """

    def __init__(self, dimensions: int, temperature: Positive = 1.0) -> None:
        super().__init__()
        self.dimensions, self.temperature = dimensions, temperature

    def forward(  # type: ignore[override]  # without a teacher
        self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None
    ) -> Tensor:
        """Return the mean loss over the queries, from vectors (q or p, ...) as ``TokenEncoder.vectors`` returns them."""
        scores = self.scores(queries, passages)  # (q, p)
        # s I = s: the scores are the inner products of their rows with unit vectors
        return info_nce(scores, torch.eye(scores.shape[1]).to(scores), positive, known, self.temperature)

    def scores(self, queries: Tensor, passages: Tensor) -> Tensor:
        """Return the scores (q, p)."""
        return interaction_scores(*(part.unflatten(1, (-1, self.dimensions + 1)) for part in (queries, passages)))


class LateInteractionModule(BiEncoderModule):
    """Trains ColBERT, COIL or ME-BERT on ``TripleDataModule``, through the gradient cache.

    The lengths of the data module are ``model.interaction.lengths``.

    Args:
        model: the encoder of token vectors.
        temperature: divisor of the scores.
        others: further arguments: those of ``TrainingModule``, and ``mask_known_positives`` as in ``BiEncoderModule``.
    """

    model: TokenEncoder
    loss: InteractionLoss

    def __init__(self, model: TokenEncoder, *, temperature: Positive = 1.0, **others: Any) -> None:
        super().__init__(model, loss=InteractionLoss(model.interaction.dimensions, temperature), **others)

    def validated(self, sample: ValidationSample) -> dict[str, float]:
        """Return MRR@10 over a sample."""
        scores = self.loss.scores(*sample.vectors(self.vectors))  # (q, p)
        return {"val/mrr@10": float(reciprocal_ranks(scores, torch.eye(scores.shape[1]).to(scores), sample).mean())}

    def described(self) -> Described:
        """Return the description of the vectors for the model card."""
        library = "sentence-transformers" if self.model.interaction.method == "colbert" else "condensery"
        text = Path(__file__).with_name("card.md")
        return Described(text, {"interaction": self.model.interaction}, ["late-interaction"], library)

    def _save(self, folder: Path, tokenizer: Path | str, lengths: tuple[int, int]) -> None:
        save_token_encoder(self.model, folder, str(tokenizer))


def finetune(config: FinetuneLateInteractionConfig, context: Context) -> dict[str, Any]:
    """Train the encoder and save the last step's weights as a checkpoint; return the metrics for the manifest."""
    training = training_queries(config, context, Collection(context.input("corpus")))
    by_text = left_out_by_text(training.by_text, context.stage_name)
    lengths = config.query_length, config.passage_length
    interaction = Interaction(config.method, config.dimensions, *lengths, config.first, config.whole)
    backbone = initial_towers(config, context, Tokens(context.input("tokens")).vocabulary, separate=False).passage
    model = new_token_encoder(backbone, interaction, context.input("tokenizer"), config.seed)
    data = triple_data(config, context, training, model.interaction.lengths)
    module = LateInteractionModule(model, temperature=config.temperature, **config.optimiser())
    return {"queries": len(training.rows), **by_text, **train_and_save(module, data, config, context, data.lengths)}
