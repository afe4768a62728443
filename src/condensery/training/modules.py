"""The LightningModules. One optimisation step = one batch through the one gradient cache."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.condenser import Condenser
from condensery.models.masked_autoencoder import MaskedAutoEncoder
from condensery.objectives.contrast import Contrast, retrieval_contrast, span_contrast, weighted
from condensery.objectives.cross_batch import (
    across_processes,
    alone,
    average,
    copy_first_weights,
    gathered,
    joined_passages,
    processes,
    rank,
    share_of,
    sum_of,
    to_be_averaged,
)
from condensery.objectives.gradient_cache import ChunkEncoder, backpropagate
from condensery.objectives.learning_to_rank import LearnedScore, learning_to_rank
from condensery.objectives.mlm import MaskedPrediction
from condensery.randomness import hash64
from condensery.tokens.batches import Chunk
from condensery.training.batches import Batch
from condensery.training.settings import TrainingSettings
from condensery.training.span_batches import SpanBatch
from condensery.training.triple_batches import TripleBatch


class TrainingModule(pl.LightningModule):
    """What all training has in common: AdamW, the schedule, clipping, logging, in Lightning's manual optimisation.

    Gradients of a step are accumulated chunk by chunk; a batch of any size needs the memory of one chunk. Of several
    processes each accumulates those of its share of the batch; then they exchange them, once a step.

    Attributes:
        tokens: read in the last step by all processes together, padding not counted.
    """

    tokens: int

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.settings = settings

    def objective(self, batch: Any) -> tuple[ChunkEncoder, Contrast | None]:
        """What encodes the chunks of ``batch``, and the loss of all their vectors."""
        raise NotImplementedError

    def embed(self, chunk: Chunk) -> Tensor:
        """Retrieval vectors (b, d) of a chunk, for validation."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """AdamW and the linear schedule; the schedule is stepped in ``training_step``."""
        settings = self.settings
        optimiser = torch.optim.AdamW(
            [
                {"params": list(self._weights(decayed=True)), "weight_decay": settings.weight_decay},
                {"params": list(self._weights(decayed=False)), "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            fused=settings.fused,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, settings.rate_at)
        return {"optimizer": optimiser, "lr_scheduler": schedule}

    def on_train_start(self) -> None:
        """All processes begin with the weights of the first."""
        copy_first_weights(self)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One optimisation step: back-propagate through the gradient cache, clip, step."""
        # dropout is a function of (seed, step, rank), so that a resumed run draws what an uninterrupted one draws
        others = [rank()] if rank() else []  # the first draws what one process draws
        torch.manual_seed(hash64(self.settings.seed, "dropout", self.global_step, *others) >> 1)
        optimiser = self.optimizers()
        assert isinstance(optimiser, LightningOptimizer)
        optimiser.zero_grad()
        with alone(batch.alone):
            encoder, contrast = self.objective(batch)
            losses = backpropagate(encoder, batch.chunks, contrast, self.manual_backward)
            self.tokens = sum_of(batch.tokens)
        losses = average(self.parameters(), losses)
        rate = optimiser.param_groups[0]["lr"]
        optimiser.step()
        self.lr_schedulers().step()  # type: ignore[union-attr]
        total = torch.stack(list(losses.values())).sum()
        self._record({"loss": total, **losses, "lr": rate})

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient; its norm before clipping is logged."""
        limit = self.settings.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.parameters(), limit, foreach=True)
        self._record({"grad_norm": norm})
        if self._looks_at_norm(norm.device) and self.settings.precision != "fp16" and not norm.isfinite():
            raise UserError(
                f"the gradient is not finite at step {self.global_step}; lower learning_rate, raise warmup or set clip"
            )

    def _looks_at_norm(self, device: torch.device) -> bool:
        """Whether this step's norm is read: on a GPU that waits for it, so only before something is written by steps."""
        step, settings = self.global_step + 1, self.settings
        written = any(every and step % every == 0 for every in (settings.log_every, settings.checkpoint_every))
        return device.type == "cpu" or written or step == settings.steps

    def _record(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.log(f"train/{name}", value, batch_size=1)

    def _weights(self, decayed: bool) -> Iterator[nn.Parameter]:
        """Matrices are decayed; biases and LayerNorm weights (one dimension) are not."""
        return (parameter for parameter in self.parameters() if (parameter.ndim > 1) == decayed)


class CondenserModule(TrainingModule):
    """Condenser pre-training (C §3), and plain MLM where the model has no head.

    A batch larger than a chunk is gradient accumulation; the MLM means are over the masked tokens of the whole batch,
    that of all processes.
    """

    model: Condenser

    def __init__(self, model: Condenser, settings: TrainingSettings, mlm_weight: float = 1.0) -> None:
        super().__init__(model, settings)
        self.mlm_weight = mlm_weight

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of head and backbone."""
        return MaskedPrediction(self.model, share_of(batch.masked), self.mlm_weight), None

    def embed(self, chunk: Chunk) -> Tensor:
        """Late CLS vectors."""
        return self.model.vectors(chunk)


class CoCondenserModule(CondenserModule):
    """coCondenser pre-training (CO eq. 7): MLM plus the contrast of the two texts of each pair, of all processes.

    Args:
        model, settings, mlm_weight: see ``CondenserModule``.
        temperature: divides the inner products (tau of Q eq. 5; the paper of coCondenser has none: 1).
        contrast_weight: of the contrast against MLM (1 in the papers).
    """

    def __init__(
        self,
        model: Condenser,
        settings: TrainingSettings,
        mlm_weight: float = 1.0,
        temperature: float = 1.0,
        contrast_weight: float = 1.0,
    ) -> None:
        super().__init__(model, settings, mlm_weight)
        self.temperature, self.contrast_weight = temperature, contrast_weight

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of head and backbone, and contrast."""
        encoder, _ = super().objective(batch)
        contrast = weighted(partial(span_contrast, temperature=self.temperature), self.contrast_weight)
        return encoder, across_processes(contrast)


class QueryAsContextModule(CoCondenserModule):
    """Query-as-context pre-training (Q §3.1): coCondenser whose pairs are a passage and one of its queries."""


class MaskedAutoEncoderModule(TrainingModule):
    """CoT-MAE (Q eq. 11) and RetroMAE: MLM of the encoder plus that of a decoder that leans on the encoder's vector.

    ``mlm_weight`` is of the encoder's MLM.
    """

    model: MaskedAutoEncoder

    def __init__(self, model: MaskedAutoEncoder, settings: TrainingSettings, mlm_weight: float = 1.0) -> None:
        super().__init__(model, settings)
        self.mlm_weight = mlm_weight

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """MLM of encoder and decoder, each a mean over its own tokens."""
        counts = {"mlm_late": share_of(batch.masked), "mlm_context": share_of(batch.context_masked)}
        return MaskedPrediction(self.model, counts, {"mlm_late": self.mlm_weight, "mlm_context": 1.0}), None

    def embed(self, chunk: Chunk) -> Tensor:
        """CLS vectors."""
        return self.model.vectors(chunk)


class InverseClozeModule(TrainingModule):
    """ICT (Lee et al. 2019, C §4.4): find the passage of a sentence among the passages of the batch.

    Rows 2i are the passages, 2i + 1 the sentences; ``temperature`` divides the inner products.
    """

    model: BiEncoder

    def __init__(self, model: BiEncoder, settings: TrainingSettings, temperature: float = 1.0) -> None:
        super().__init__(model, settings)
        self.temperature = temperature

    def objective(self, batch: SpanBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """InfoNCE over the passages of the batch, of all processes."""
        return self.model, across_processes(self._contrast)

    def embed(self, chunk: Chunk) -> Tensor:
        """CLS vectors."""
        return self.model.vectors(chunk)

    def _contrast(self, vectors: Tensor) -> Tensor:
        passages, sentences = vectors[0::2], vectors[1::2]
        own = torch.arange(len(passages), device=vectors.device)
        return retrieval_contrast(sentences, passages, own, temperature=self.temperature)


class BiEncoderModule(TrainingModule):
    """Fine-tuning of the bi-encoder (SPEC §4): negative log-likelihood of the positive.

    With several processes the passages of all are the negatives (RocketQA's cross-batch negatives).

    Args:
        model: the towers.
        settings: how it is optimised.
        mask_known_positives: leave out passages of the batch that are judged relevant to the query but are not the
            drawn positive. The papers' code counts them as negatives.
        temperature: divides the inner products.
        learned_score: A's learning-to-rank loss instead (A eq. 14).
    """

    model: BiEncoder

    def __init__(
        self,
        model: BiEncoder,
        settings: TrainingSettings,
        mask_known_positives: bool = True,
        temperature: float = 1.0,
        learned_score: bool = False,
    ) -> None:
        super().__init__(model, settings)
        self.mask_known_positives, self.temperature = mask_known_positives, temperature
        self.score = LearnedScore(model, settings.seed) if learned_score else None

    def objective(self, batch: TripleBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """InfoNCE over the passages of the batch, of all processes."""
        number = len(batch.positive)
        loss = learning_to_rank if self.score else retrieval_contrast

        def contrast(vectors: Tensor) -> Tensor:
            queries, passages, positive, known = vectors[:number], vectors[number:], batch.positive, batch.known
            if processes() > 1:
                queries = gathered(queries)
                passages, positive, known = joined_passages(passages, batch.passages, positive, batch.judged)
            masked = known if self.mask_known_positives else None
            return to_be_averaged(loss(queries, passages, positive, masked, self.temperature))

        return self.score or self.model, contrast

    def embed(self, chunk: Chunk) -> Tensor:
        """Vectors by the tower of the chunk."""
        return self.model.vectors(chunk)
