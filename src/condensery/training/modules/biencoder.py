"""Fine-tuning of a bi-encoder."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from condensery.distributed import gathered, processes
from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.losses.cross_batch import joined_passages, joined_teacher
from condensery.losses.gradient_cache import ChunkEncoder, wide
from condensery.losses.registry import make_loss, takes_teacher
from condensery.losses.retrieval_loss import RetrievalLoss
from condensery.models.biencoder import PASSAGE, BiEncoder
from condensery.ranges import Positive, check_values
from condensery.tokens.batches import Chunk
from condensery.training.data.triple_batches import TripleBatch
from condensery.training.modules.encoders import TowersModule
from condensery.training.modules.optimisation import PathOrName


class BiEncoderModule(TowersModule):
    """Fine-tunes a bi-encoder (Karpukhin et al. 2020), by default with the negative log-likelihood of the positive.

    The passages of the other queries in the batch are negatives, over all processes (RocketQA's cross-batch negatives).

    Args:
        model: see ``TowersModule``.
        loss: name of a loss (info_nce, passage_centric, learning_to_rank, margin_mse, kl, rank_consistent, matryoshka, or a
            registered loss); a mapping with ``name`` and the loss's options; or a ``RetrievalLoss``. margin_mse, kl and
            rank_consistent need a ``teacher`` in the data module.
        mask_known_positives: whether passages of the batch that are relevant to the query, by judgement or by their text,
            are excluded as negatives. The papers' code excludes only the one positive that was drawn for the query.
        temperature: temperature of the loss; ignored if ``loss`` is a ``RetrievalLoss``.
        train_passages: False = only a separate query tower is trained, and the passage tower is frozen (ADORE: Zhan et al.
            2021, §4.2). If ``TripleDataModule`` has a ``student``, passages are then not encoded at all, because the batches
            hold the student's passage vectors.
        others: further arguments of ``TowersModule``.

    Raises:
        UserError: the checkpoint cannot be loaded, a number is out of its range, or the loss or its option is unknown.
    """

    usual_rate = 5e-6

    trained_on = MappingProxyType({False: "TripleDataModule"})

    def __init__(
        self,
        model: PathOrName | BiEncoder,
        *,
        loss: str | Mapping[str, Any] | RetrievalLoss = "info_nce",
        mask_known_positives: bool = True,
        temperature: Positive = 1.0,
        train_passages: bool = True,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, **(others if train_passages else {"towers": "separate", **others}))
        if not train_passages:
            self.freeze_passages()
        self.mask_known_positives = mask_known_positives
        self.loss = loss if isinstance(loss, RetrievalLoss) else make_loss(loss, temperature=temperature)
        self.loss.normalised = self.model.settings.normalise
        self.loss.prepare(self.model.hidden_size, self.seed)
        self._remember(locals())

    def objective(self, batch: TripleBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder, and the loss over the queries and passages of all processes."""
        number = len(batch.positive)
        self._check_teacher(batch.teacher is not None, batch.in_batch is not None)

        def contrast(vectors: Tensor) -> Tensor:
            queries, passages, positive, known = vectors[:number], vectors[number:], batch.positive, batch.known
            if batch.vectors is not None:
                passages = self.loss.features(batch.vectors.to(queries), PASSAGE)
            teacher = {} if batch.teacher is None else {"teacher": batch.teacher}
            if processes() > 1:
                if teacher:
                    assert batch.scored is not None
                    assert batch.scores is not None
                    teacher = {"teacher": joined_teacher(batch.passages, number, batch.scored, batch.scores)}
                queries = gathered(queries)  # (Q, d)
                passages, positive, known = joined_passages(passages, batch.passages, positive, batch.judged)
            if batch.in_batch is not None:
                teacher["in_batch" if teacher else "teacher"] = gathered(batch.in_batch)  # (Q, P)
            return self.loss(queries, passages, positive, known if self.mask_known_positives else None, **teacher)

        return Featured(self.model, self.loss), contrast

    def _check_teacher(self, there: bool, in_batch: bool) -> None:
        """Raise ``UserError`` if the loss needs teacher scores that the batch lacks, or cannot take the batch's scores."""
        name = type(self.loss).__name__
        if there and in_batch and not takes_teacher(self.loss, "in_batch"):
            raise UserError(f"the loss {name} takes only one teacher; give the data `teacher` or `in_batch_teacher`")
        there = there or in_batch
        if there and not takes_teacher(self.loss):
            raise UserError(
                f"the batch has a teacher's scores, but the forward of the loss {name} has no argument `teacher`; give the"
                " data no teacher, or use the loss margin_mse or kl"
            )
        if self.loss.needs_teacher and not there:
            raise UserError(f"the loss {name} needs a teacher's scores; give TripleDataModule a teacher")


class Featured:
    """Wraps a bi-encoder as a ``ChunkEncoder`` that gives the loss's features of the vectors (``RetrievalLoss.features``)."""

    def __init__(self, model: BiEncoder, loss: RetrievalLoss) -> None:
        self.model, self.loss = model, loss

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the loss's features (b, f) of a chunk.

        The vectors of a bf16 model are cast to fp32, because the weights of the loss stay in fp32.
        """
        vectors = self.model.vectors(chunk)
        if not torch.is_autocast_enabled(vectors.device.type):
            vectors = wide(vectors)
        return self.loss.features(vectors, chunk.tower)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the features (b, f) of ``vectors``, and no losses of the chunk."""
        return self.vectors(chunk), {}
