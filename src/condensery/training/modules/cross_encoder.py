"""Training of the cross-encoder."""

from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from condensery.distributed import share_of
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder
from condensery.losses.relevance import Loss, RelevanceOfLists
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.cross_encoder import (
    CrossEncoder,
    Reranker,
    load_cross_encoder,
    pair_separators,
    save_cross_encoder,
)
from condensery.ranges import Length, Share, check_values, no_room
from condensery.system.files import no_artifact
from condensery.training.data.list_batches import ListBatch
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.settings import Optimiser
from condensery.training.validation import PairSample, mean_reciprocal_rank_of_pairs


class CrossEncoderModule(TrainingModule):
    """Trains a cross-encoder to score the relevance of a passage to a query (Qu et al. 2021).

    Train this module on ``TripleDataModule(pairs=True)``. If a batch has several chunks, their gradients are accumulated.

    Args:
        model: folder or hub name of a checkpoint of the BERT family, or a ``CrossEncoder``.
        loss: pointwise = binary cross-entropy of each pair; listwise = softmax cross-entropy over the passages of a query.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        optimiser: arguments of ``TrainingModule``.

    Raises:
        UserError: the checkpoint cannot be loaded, or a number is out of its range.
    """

    usual_rate = 2e-5

    model: CrossEncoder
    trained_on = MappingProxyType({True: "TripleDataModule(pairs=True)"})

    def __init__(
        self,
        model: str | Path | CrossEncoder,
        *,
        loss: Loss = "pointwise",
        dropout: Share | None = None,
        **optimiser: Unpack[Optimiser],
    ) -> None:
        check_values(type(self), locals())
        built = model
        if not isinstance(built, CrossEncoder):
            folder = checkpoint_folder(built, key=f"{type(self).__name__}: model")
            built = load_cross_encoder(folder, optimiser.get("seed", 42), dropout).train()
        super().__init__(built, **optimiser)
        self.loss = loss
        self._remember(locals())

    def objective(self, batch: ListBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the loss of the lists; there is no contrastive loss."""
        return RelevanceOfLists(self.model, share_of(batch.lists), batch.size, self.loss), None

    def validated(self, sample: PairSample) -> dict[str, float]:
        """Return MRR@10 over a ``PairSample``."""
        return {"val/mrr@10": mean_reciprocal_rank_of_pairs(self.model.scores, sample)}

    def save_pretrained(
        self, folder: str | Path, tokenizer: str | Path | None = None, lengths: tuple[Length, Length] | None = None
    ) -> None:
        """Save the model for ``AutoModelForSequenceClassification`` and sentence-transformers' ``CrossEncoder``.

        Args:
            folder: folder to write to; it is created if it does not exist.
            tokenizer: folder or hub name of the tokenizer that is saved with the model; None = the tokenizer of the data
                module that this module was trained on.
            lengths: maximum query length and pair length in tokens; None = the lengths of this data module.

        Raises:
            UserError: ``tokenizer`` or ``lengths`` is not known, the query leaves no room for a passage, the length exceeds
                the model's positions, or the folder is an artifact of a run.
        """
        check_values(CrossEncoderModule.save_pretrained, locals())
        folder, tokenizer = no_artifact(folder), tokenizer or getattr(self._data, "tokenizer_folder", None)
        lengths = lengths or getattr(self._data, "lengths", None)
        if tokenizer is None or lengths is None:
            raise UserError("save_pretrained: give `tokenizer` and `lengths`; only a TripleDataModule sets them")
        query_length, length = lengths
        if wrong := no_room(query_length, length):
            raise UserError(f"save_pretrained: {wrong}")
        self.model.encoder.check_length(length, "save_pretrained: length")
        save_cross_encoder(Reranker(self.model, query_length, length, pair_separators(tokenizer)), folder, tokenizer)
